"""Seconds of an image by the built-in demo model on this machine's processor, through the engine's own server.

    python -m benchmark.demo_speed [--rounds 5]

128x128, 20 steps with guidance, as `Text2Image` draws it when no other model is installed; the engine runs as it does
when it is started by hand (float32). The first image loads the model and is told apart. The result is printed and
written to benchmark/results/demo_speed.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmark.comfyui_speed import ROOT, Engine, run_prompt, serving
from benchmark.machine import describe_cpu

RESULTS = Path(__file__).parent / "results" / "demo_speed.json"
CHECKPOINT = "darkroom-emoji.safetensors"
STEPS, SIDE_PX = 20, 128
BAR_SECONDS = 3.0


def prompt_of(seed: int) -> dict[str, Any]:
    def node(class_type: str, **inputs: Any) -> dict[str, Any]:
        return {"class_type": class_type, "inputs": inputs}

    return {
        "1": node("CheckpointLoaderSimple", ckpt_name=CHECKPOINT),
        "2": node("CLIPTextEncode", clip=["1", 1], text="a red apple on a blue background"),
        "3": node("CLIPTextEncode", clip=["1", 1], text=""),
        "4": node("EmptyLatentImage", width=SIDE_PX, height=SIDE_PX, batch_size=1),
        "5": node(
            "KSampler", model=["1", 0], positive=["2", 0], negative=["3", 0], latent_image=["4", 0], seed=seed,
            steps=STEPS, cfg=4.0, sampler_name="euler", scheduler="normal", denoise=1.0,
        ),
        "6": node("VAEDecode", samples=["5", 0], vae=["1", 2]),
        "7": node("SaveImage", images=["6", 0], filename_prefix="demo"),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    engine = Engine("demo", [sys.executable, "-m", "darkroom.engine"], ROOT, "float32")
    with tempfile.TemporaryDirectory() as models, serving(engine, Path(models), threads) as port:
        first = run_prompt(port, prompt_of(0))
        seconds = [run_prompt(port, prompt_of(seed)) for seed in range(1, given.rounds + 1)]
    found = {
        "machine": describe_cpu(),
        "size_px": SIDE_PX,
        "steps": STEPS,
        "first_picture_seconds": round(first, 2),
        "picture_seconds": round(statistics.median(seconds), 2),
        "spread": [round(value, 2) for value in seconds],
        "bar_seconds": BAR_SECONDS,
    }
    Console().print_json(data=found)
    given.output.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
