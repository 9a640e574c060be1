"""Draws the expected images anew: `python -m tests.flow.make_expected`. Look at them before committing them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

from tests.flow.bodies import image_request, modifier_request, workflow_request
from tests.flow.receiver import running_receiver
from tests.flow.running_worker import ROOT, running_worker
from tests.flow.test_demo_model import DEMO_IMAGES, drawn

EXPECTED = Path(__file__).parent / "expected"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "small.safetensors"
        subprocess.run(
            [sys.executable, "-m", "darkroom.engine", "random-checkpoint", str(checkpoint)], check=True, cwd=ROOT
        )
        with running_worker(Path(folder), checkpoint) as worker, running_receiver() as host:
            result = worker.generate(modifier_request()).raise_for_status().json()
            (EXPECTED / "text_to_image.png").write_bytes(worker.output_bytes(result))
            result = worker.generate(workflow_request()).raise_for_status().json()
            for index, output in enumerate(result["output"]):
                (EXPECTED / f"workflow_{index}.png").write_bytes(httpx.get(output["url"]).content)
            host.files["/boat.png"] = (EXPECTED / "workflow_0.png").read_bytes()
            result = worker.generate(image_request(f"{host.url}/boat.png")).raise_for_status().json()
            (EXPECTED / "image_to_image.png").write_bytes(worker.output_bytes(result))
            for name, prompt in DEMO_IMAGES.items():
                Image.fromarray(drawn(worker, prompt=prompt).astype(np.uint8)).save(EXPECTED / name)


if __name__ == "__main__":
    main()
