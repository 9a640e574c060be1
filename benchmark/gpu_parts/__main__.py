"""Run one part: `python -m benchmark.gpu_parts NAME --out FILE --seconds N [--toy] [--peers DIR] [--case TEXT]`."""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from pathlib import Path

from benchmark.gpu_schedule import PARTS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=[part.name for part in PARTS])
    parser.add_argument("--out", type=Path, required=True, help="file for the figures")
    parser.add_argument("--seconds", type=float, required=True, help="the part ends by itself within these")
    parser.add_argument("--base", type=Path, default=None, help="folder for files that parts share")
    parser.add_argument("--peers", type=Path, default=None)
    parser.add_argument("--case", default=None, help="one case of the part alone")
    parser.add_argument("--toy", action="store_true")
    asked = parser.parse_args()
    module = importlib.import_module(f"benchmark.gpu_parts.{asked.name}")
    from benchmark.gpu_parts.bench import Bench, run_part  # torch is imported from here on

    with tempfile.TemporaryDirectory() as own:
        base = Path(own) if asked.base is None else asked.base
        bench = Bench.of(
            out=asked.out, seconds=asked.seconds, base=base, own=Path(own), peers=asked.peers, is_toy=asked.toy
        )
        work = module.measure if asked.case is None else lambda bench: module.measure_case(bench, asked.case)
        return run_part(bench, work)


if __name__ == "__main__":
    sys.exit(main())
