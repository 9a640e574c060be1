"""What it brings that an engine's large tensors lie on pages of 2 MB: `python -m benchmark.large_pages [--starts 3]`.

An engine is started in turns with `THP_MEM_ALLOC_ENABLE` 1, its own default, and 0. Measured are the seconds from its
start to the end of a first prompt of one step at 256x256 with a whole SD1.5 checkpoint of random weights, which lies in
the page cache (`--checkpoint` names another), and those of a second prompt. Medians; the result is printed and written
to benchmark/results/large_pages.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmark.comfyui_speed import ROOT, Engine, checkpoint_prompt, num_threads, run_prompt, serving
from benchmark.machine import describe_cpu
from benchmark.model_loading import read_again
from engine.checkpoints.random_weights import write_random_checkpoint

RESULTS = Path(__file__).parent / "results" / "large_pages.json"
KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")
WAYS = {"large_pages": "1", "plain_pages": "0"}


def measure(models: Path, file: str, num_starts: int) -> dict[str, Any]:
    """Medians of the seconds, by way."""
    prompt = checkpoint_prompt(file, 256)
    first: dict[str, list[float]] = {way: [] for way in WAYS}
    second: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(num_starts):
        for way, setting in WAYS.items():
            engine = Engine(way, (sys.executable, "-m", "engine"), ROOT, "float32")
            began = time.monotonic()
            with serving(engine, models, num_threads(), {"THP_MEM_ALLOC_ENABLE": setting}) as port:
                run_prompt(port, prompt(1, 0))
                first[way].append(time.monotonic() - began)
                second[way].append(run_prompt(port, prompt(1, 1)))
    medians = {
        name: {way: round(statistics.median(seconds), 2) for way, seconds in taken.items()}
        for name, taken in (("start_to_first_result_seconds", first), ("second_prompt_seconds", second))
    }
    ratios = {f"{name}_ratio": round(taken["plain_pages"] / taken["large_pages"], 2) for name, taken in medians.items()}
    return {**medians, **ratios, "starts": num_starts}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=None, help="an SD1.5 checkpoint; random without")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "checkpoints", "measured.safetensors")
        if given.checkpoint is None:
            write_random_checkpoint(file, scale="full")
        else:
            file.parent.mkdir()
            file.symlink_to(given.checkpoint.absolute())
        read_again(file)
        figures = measure(Path(folder), file.name, given.starts)
    kernel = KERNEL.read_text(encoding="ascii").strip() if KERNEL.exists() else "absent"
    report = {"machine": describe_cpu(), "transparent_hugepage": kernel, **figures}
    given.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
