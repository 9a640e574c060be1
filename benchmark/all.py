"""Every benchmark that this machine allows, in under fifteen minutes: `python -m benchmark.all --out DIR`.

Writes `all.json`, with the report of each part and the figures beside their goals, and `all.md`, the same figures as a
table. A part runs in a process of its own. One that fails, takes too long or lacks something is named with the reason
and stops no other; the exit code is 1 when one failed. ComfyUI is measured beside ours where `--comfyui` names a
checkout, the GPU where there is one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.goals import compare, table
from benchmark.machine import describe_cpu

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results"
LIMIT_SECONDS = 870.0
SHOWN_LINES = 3  # of a failed part's errors


@dataclass(frozen=True, slots=True)
class Part:
    """A benchmark: its module, its arguments before the file it writes, and what it may take."""

    name: str
    arguments: tuple[str, ...] = ()
    most_seconds: float = 120.0
    output_flag: str = "--output"


@dataclass(frozen=True, slots=True)
class Ran:
    """Outcome of a part: its report, or the reason for its absence."""

    report: Any
    failure: str | None
    seconds: float


def parts(*, has_gpu: bool, is_quick: bool, comfyui: Sequence[str]) -> list[Part]:
    """The parts for this machine, the quickest first."""
    repeats = "1" if is_quick else "3"
    found = [
        Part("engine_start", ("--repeats", repeats)),
        Part("front_start", ("--repeats", repeats)),
        Part("node_cost", ("--repeats", repeats, "--sizes", "800")),
        Part("generate_sync", ("--requests", "50" if is_quick else "400")),
        Part("demo_speed", ("--rounds", repeats)),
        Part("shared_steps", ("--rounds", "1" if is_quick else "2", "--images", "8" if is_quick else "16"), 240.0),
        Part("tuning", ("--size", "64", "--steps", "2") if is_quick and not has_gpu else (), 400.0),
    ]
    if has_gpu:
        found.append(Part("gpu", ("--minutes", "7.5"), 470.0, "--out"))
    if comfyui:
        found.append(Part("comfyui_speed", (*comfyui, "--rounds", "1" if is_quick else "2", "--starts", "1"), 660.0))
    return found


def run_part(part: Part, folder: Path, left_seconds: float) -> Ran:
    """Run a part for at most what it may take and what is left."""
    began = time.monotonic()
    file = folder / f"{part.name}.json"
    target = folder if part.name == "gpu" else file
    command = [sys.executable, "-m", f"benchmark.{part.name}", *part.arguments, part.output_flag, str(target)]
    limit = min(part.most_seconds, left_seconds)
    if limit <= 0:
        return Ran(None, "no time was left", 0.0)
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return Ran(None, f"took more than {limit:.0f} s", time.monotonic() - began)
    seconds = time.monotonic() - began
    if not file.is_file():
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()][-SHOWN_LINES:]
        return Ran(None, f"exit code {done.returncode}: {' / '.join(lines)}"[:400], seconds)
    return Ran(json.loads(file.read_text(encoding="utf-8")), None, seconds)


def run_all(chosen: Sequence[Part], limit_seconds: float) -> dict[str, Any]:
    """The reports of the parts, the figures beside their goals, and the parts that have no report."""
    began = time.monotonic()
    reports: dict[str, Any] = {}
    missing: dict[str, str] = {}
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in chosen:
            print(f"{part.name} ...", flush=True)
            ran = run_part(part, Path(folder), limit_seconds - (time.monotonic() - began))
            seconds[part.name] = round(ran.seconds, 1)
            if ran.failure is None:
                reports[part.name] = ran.report
            else:
                missing[part.name] = ran.failure
    return {
        "machine": describe_cpu(),
        "figures": compare(reports),
        "failed": missing,
        "seconds": seconds,
        "total_seconds": round(time.monotonic() - began, 1),
        "reports": reports,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for all.json and all.md")
    parser.add_argument("--only", nargs="+", default=None, metavar="NAME", help="parts to run")
    parser.add_argument("--quick", action="store_true", help="as little of each as proves that it runs")
    parser.add_argument("--comfyui", type=Path, default=None, help="a ComfyUI checkout to measure beside ours")
    parser.add_argument("--comfyui-python", default=sys.executable, help="the interpreter that has its requirements")
    parser.add_argument("--checkpoint", type=Path, default=None, help="an SD1.5 checkpoint for it; random without")
    parser.add_argument("--limit-seconds", type=float, default=LIMIT_SECONDS)
    asked = parser.parse_args(arguments)
    comfyui: tuple[str, ...] = (
        () if asked.comfyui is None else ("--comfyui", str(asked.comfyui), "--comfyui-python", asked.comfyui_python)
    )
    if comfyui and asked.checkpoint is not None:
        comfyui = (*comfyui, "--checkpoint", str(asked.checkpoint))
    chosen = parts(has_gpu=has_gpu(), is_quick=asked.quick, comfyui=comfyui)
    report = run_all([part for part in chosen if asked.only is None or part.name in asked.only], asked.limit_seconds)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "all.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    shown = table(report["figures"], report["failed"])
    (asked.out / "all.md").write_text(shown + "\n", encoding="utf-8")
    print(shown)
    return 1 if report["failed"] else 0


def has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())
