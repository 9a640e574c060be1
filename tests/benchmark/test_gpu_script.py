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
from typing import Any

import pytest

from benchmark.gpu_parts.sampling import STAND_IN
from benchmark.gpu_schedule import PARTS
from darkroom.contract.quality import STRATEGIES

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 24

# What a bare GPU machine lacks: every other package that the project installs.
BLOCKER = """
import sys
absent = {"torchsde", "fastapi", "pydantic", "boto3", "structlog", "sqlalchemy", "av", "mutagen", "diffusers"}

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
"""


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES + 60)
def test_every_part_passes_at_toy_size_with_the_packages_of_a_bare_gpu_machine(tmp_path: Path) -> None:
    out = tmp_path / "results"
    command = [sys.executable, str(ROOT / "benchmark" / "gpu.py"), "--toy", "--out", str(out)]
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [*command, "--minutes", str(MINUTES)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    shown = done.stdout + done.stderr + (out / "log.txt").read_text()
    assert done.returncode == 0, shown
    report = json.loads((out / "gpu.json").read_text())
    parts: dict[str, Any] = report["parts"]
    assert list(parts) == [part.name for part in PARTS] and report["is_finished"] and report["is_toy"]
    assert report["not_done"] == {} and not [entry["failures"] for entry in parts.values() if entry["failures"]], shown
    assert {path.name for path in out.iterdir()} == {"gpu.json", "gpu.jsonl", "log.txt", "table.md"}
    assert len((out / "gpu.jsonl").read_text().splitlines()) == len(PARTS)
    assert done.stdout.rstrip().endswith((out / "table.md").read_text().rstrip().rpartition("\n")[2])

    found = {name: entry["figures"] for name, entry in parts.items()}
    for way in ("plain", STAND_IN, "all"):
        for place in (found["sd15"]["batch_1"], found["sdxl"]["batch_1"], found["flux"]["bfloat16"]):
            assert place[way].get("it_per_s", 0) > 0 or way == STAND_IN, place
            assert place[way]["is_finite"]
    assert found["flux"]["float8_kept"]["plain"]["it_per_s"] > 0
    assert all(found["wan"][work]["plain"]["it_per_s"] > 0 for work in ("wan_480p_33", "wan22_720p_25"))
    assert found["families"]["share_float32"] == 1.0 and found["families"]["share_default"] == 1.0
    assert found["memory"]["share_equal"] == 1.0 and found["memory"]["share_recovered"] == 1.0
    assert found["capture"]["share_equal"] == 1.0 and found["capture"]["share_sound"] == 1.0
    assert len(found["tuning"]["figures"]) == len(STRATEGIES) and found["tuning"]["plain_it_per_s"] > 0
    assert found["eight"]["close_ratio"] > 0 and found["eight"]["ratio"] > 0
    widths = {item["width"] for item in found["eight"]["widths_tried"]}
    assert len(widths) > 1, "clients share a network; whether wide batches are worth it is a matter of time"
    assert found["eight"]["lone_ratio"] > 0
    assert found["load"]["file_to_device"]["warm_gb_per_s"] > 0 and found["load"]["start"]["first_image_seconds"] > 0
    assert "not there" in found["front"]["front"] and "not there" in found["peer_comfyui"]["peer"]
    assert "not there" in found["peer_diffusers"]["peer"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        test_every_part_passes_at_toy_size_with_the_packages_of_a_bare_gpu_machine(Path(folder))
    sys.stdout.write("1 passed, 0 failed\n")
