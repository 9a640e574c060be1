"""Effect of pages of 2 MB for an engine's large tensors: `python -m benchmark.large_pages [--starts 3]`.

An engine is started in turns with `THP_MEM_ALLOC_ENABLE` 1, its own default, and 0. Measured are the seconds from its
start to the end of a first prompt of one step at 256x256 with a whole SD1.5 checkpoint of random weights, which lies in
the page cache (`--checkpoint` names another). Medians; the result is printed and written to
benchmark/results/large_pages.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from benchmark.comfyui_speed import ROOT, Engine, measure_starts, prepare
from benchmark.machine import describe_cpu

RESULTS = Path(__file__).parent / "results" / "large_pages.json"
KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")
WAYS = {"large_pages": "1", "plain_pages": "0"}
SIZE_PX = 256


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=None, help="an SD1.5 checkpoint; random without")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    command = [sys.executable, "-m", "darkroom.engine"]
    engines = [
        Engine(way, command, ROOT, "float32", {"THP_MEM_ALLOC_ENABLE": setting}) for way, setting in WAYS.items()
    ]
    with tempfile.TemporaryDirectory() as models:
        measure_starts(engines, Path(models), prepare("sd15", Path(models), given.checkpoint, SIZE_PX), given.starts)
    medians = {engine.name: round(statistics.median(engine.first_result_seconds), 2) for engine in engines}
    report = {
        "machine": describe_cpu(),
        "transparent_hugepage": KERNEL.read_text(encoding="ascii").strip() if KERNEL.exists() else "absent",
        "start_to_first_result_seconds": medians,
        "ratio": round(medians["plain_pages"] / medians["large_pages"], 2),
        "spread": {engine.name: [round(value, 2) for value in engine.first_result_seconds] for engine in engines},
    }
    given.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
