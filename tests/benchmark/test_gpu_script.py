"""The GPU benchmark proves itself at toy size where there is no GPU. Also runs without pytest:

python tests/benchmark/test_gpu_script.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_writes_a_report_with_every_figure(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmark" / "gpu.py"), "--toy", "--out", str(tmp_path / "results")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "results" / "gpu.json").read_text())
    assert report["failed"] == []
    for part in ("unet_batch_1", "unet_batch_4", "end_to_end_batch_1", "end_to_end_batch_4"):
        assert report[part]["it_per_s"] > 0, part
        assert len(report[part]["seconds"]) == report["size"]["num_runs"]
    assert report["load"]["to_host_gb_per_s"] > 0
    assert report["picture"]["float32_mean"] <= 1.0
    assert report["picture"]["reference_deviation"] > 1.0, "a flat picture compares nothing"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        test_writes_a_report_with_every_figure(Path(folder))
    sys.stdout.write("1 passed, 0 failed\n")
