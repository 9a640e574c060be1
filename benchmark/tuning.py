"""Every strategy of `engine/tuning`, measured in one engine: `python -m benchmark.tuning --out FILE`.

Writes the outcome: steps a second with each strategy and without it, its error against the plain path, and why it was
chosen or not. Weights are random. On a CPU the network is small unless `--scale full` is given, and blocks are not
compiled, as that takes minutes there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmark.machine import describe_cpu
from darkroom.contract.quality import STRATEGIES
from darkroom.engine import Engine, EngineSettings

RESULTS = Path(__file__).parent / "results" / "tuning.json"
COMPILED = "compiled_blocks"


def measure_strategies(body: Mapping[str, Any], *, on_cpu: bool, with_compiler: bool, base: Path) -> dict[str, Any]:
    """The outcome of all strategies, also those that are measured only by name; `body` is a `TuningRequest`'s JSON."""
    names = tuple(name for name in STRATEGIES if with_compiler or name != COMPILED)
    settings = EngineSettings(base_directory=base, cpu=on_cpu, disable_all_custom_nodes=True, tuning=names)
    with Engine(settings) as engine:
        return engine.tuning.measure(body).result()


def table(outcome: Mapping[str, Any]) -> str:
    """The figures as lines of a Markdown table."""
    rows = [
        "| Strategy | Quality | it/s before | it/s after | error | chosen |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for item in outcome["figures"]:
        before, after, error = (
            "–" if value is None else f"{value:.3g}"
            for value in (item["before_it_per_s"], item["it_per_s"], item["error"])
        )
        chosen = "yes" if item["is_chosen"] else f"no: {item['reason']}"
        rows.append(f"| `{item['name']}` | {item['quality']} | {before} | {after} | {error} | {chosen} |")
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> int:
    is_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", "--output", type=Path, default=RESULTS)
    parser.add_argument("--family", default="sd15")
    parser.add_argument("--scale", default="full" if is_gpu else "small")
    parser.add_argument("--size", type=int, default=512 if is_gpu else 128, help="pixels a side")
    parser.add_argument("--steps", type=int, default=20 if is_gpu else 8)
    parser.add_argument("--compile", action="store_true", default=is_gpu, help="compile blocks, too")
    asked = parser.parse_args(arguments)
    body = {
        "family": asked.family,
        "scale": asked.scale,
        "width_px": asked.size,
        "height_px": asked.size,
        "num_steps": asked.steps,
    }
    with tempfile.TemporaryDirectory() as folder:
        outcome = measure_strategies(body, on_cpu=not is_gpu, with_compiler=asked.compile, base=Path(folder))
    machine = {**describe_cpu(), "load_average": round(os.getloadavg()[0], 1)}
    asked.out.write_text(json.dumps({"machine": machine, "outcome": outcome}, indent=2) + "\n", encoding="utf-8")
    print(table(outcome))
    return 0


if __name__ == "__main__":
    sys.exit(main())
