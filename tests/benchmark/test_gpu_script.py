"""The GPU benchmark proves itself at toy size where there is no GPU. Also runs without pytest:

python tests/benchmark/test_gpu_script.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from names.tuning import STRATEGIES

ROOT = Path(__file__).resolve().parents[2]


# What a bare GPU machine lacks: every other package that the project installs.
BLOCKER = """
import sys
absent = {"aiohttp", "scipy", "torchsde", "regex", "fastapi", "pydantic", "httpx", "boto3", "structlog", "sqlalchemy"}

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
"""


@pytest.mark.slow
def test_writes_every_figure_with_only_torch_numpy_pillow_and_safetensors(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmark" / "gpu.py"), "--toy", "--out", str(tmp_path / "results")]
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "results" / "gpu.json").read_text())
    assert report["failed"] == []
    for part in ("unet_batch_1", "unet_batch_4", "end_to_end_batch_1", "end_to_end_batch_4"):
        assert report[part]["it_per_s"] > 0, part
        assert len(report[part]["seconds"]) == report["size"]["num_runs"]
    assert report["device"]["matrix_tflops"] > 0 and report["device"]["fault"] is None
    assert report["load"]["to_host_gb_per_s"] > 0
    assert len(report["tuning"]["figures"]) == len(STRATEGIES) and report["tuning"]["plain_it_per_s"] > 0
    assert report["shared_steps"]["ratio"] > 0
    assert report["picture"]["float32_mean"] <= 1.0
    assert report["picture"]["reference_deviation"] > 1.0, "a flat picture compares nothing"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        test_writes_every_figure_with_only_torch_numpy_pillow_and_safetensors(Path(folder))
    sys.stdout.write("1 passed, 0 failed\n")
