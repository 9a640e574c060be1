"""ComfyUI's recorded results, drawn again under every flag of model memory by real engines.

    python -m benchmark.parity_flags --models DIR [--sets NAME ...] [--only GLOB ...] [--leave-out ...]

`--models` is a models directory with what `python -m tests.parity.models --family sd15` writes, the files that the
cases name. For each set of flags an engine is started on a card that is simulated (`--simulate-vram`), and
`tests.parity.compare` runs the cases against it. Outcomes are added to those in benchmark/results/parity_flags.json, so
that sets and cases can be run a few at a time; what the cards did meanwhile (loads, evictions, bytes brought over,
relief) stands beside them, as a set that did nothing of its own shows nothing. The exit code is 1 when a case failed.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmark.engine_start import ask, free_port, wait_until
from benchmark.machine import describe_cpu

ROOT = Path(__file__).parents[1]
FAMILY = "sd15"
CASES = ROOT / "tests" / "parity" / "cases" / f"{FAMILY}.zip"
RESULTS = Path(__file__).parent / "results" / "parity_flags.json"
CASE_SECONDS = 600

# What each set is about, on a card where it makes a difference: in 1 GiB the small checkpoints (1.2 GiB as float32)
# have to come in part; 16 GiB hold all that stays for good.
SETS: Mapping[str, tuple[str, ...]] = {
    "cpu": ("--cpu",),
    "default": ("--simulate-vram", "4"),
    "normalvram": ("--simulate-vram", "1", "--normalvram"),
    "novram": ("--simulate-vram", "1", "--novram"),
    "lowvram": ("--simulate-vram", "1", "--lowvram"),
    "highvram": ("--simulate-vram", "16", "--highvram"),
    "gpu-only": ("--simulate-vram", "16", "--gpu-only"),
    "disable-smart-memory": ("--simulate-vram", "4", "--disable-smart-memory"),
    "reserve-vram": ("--simulate-vram", "2", "--normalvram", "--reserve-vram", "1"),
    "async-offload-1": ("--simulate-vram", "1", "--normalvram", "--async-offload", "1"),
    "async-offload-4": ("--simulate-vram", "1", "--normalvram", "--async-offload", "4"),
    "disable-async-offload": ("--simulate-vram", "1", "--normalvram", "--disable-async-offload"),
    "disable-pinned-memory": ("--simulate-vram", "1", "--normalvram", "--disable-pinned-memory"),
}
LINE = re.compile(r"(?P<verdict>ok  |FAIL) (?P<case>\S+) \((?P<seconds>[\d.]+) s\): (?P<told>.*)")


def chosen(cases: Path, only: Sequence[str], left_out: Sequence[str]) -> list[str]:
    """The names of the cases to run, of those in an archive."""
    with zipfile.ZipFile(cases) as archive:
        files = sorted(name for name in archive.namelist() if "/" not in name and not name.endswith(".tolerance.json"))
    names = (name.removesuffix(".json") for name in files)
    return [name for name in names if _fits(name, only) and not _fits(name, left_out)]


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def read_lines(lines: Sequence[str]) -> tuple[dict[str, float], dict[str, str]]:
    """Read the lines that `tests.parity.compare` printed: seconds of each case, and the faults of failed ones."""
    found = [match for line in lines if (match := LINE.fullmatch(line.strip()))]
    seconds = {match["case"]: float(match["seconds"]) for match in found}
    return seconds, {match["case"]: match["told"] for match in found if match["verdict"] == "FAIL"}


@contextmanager
def running_engine(base: Path, flags: Sequence[str]) -> Iterator[int]:
    """The port of an engine that answers."""
    port = free_port()
    own = ["--port", str(port), "--base-directory", str(base), "--disable-all-custom-nodes", "--verbose", "WARNING"]
    process = subprocess.Popen([sys.executable, "-m", "darkroom.engine", *own, *flags], cwd=ROOT)
    try:
        wait_until(process, lambda: ask(port, "GET", "/system_stats"))
        yield port
    finally:
        process.terminate()
        process.wait(timeout=60)


def run_set(flags: Sequence[str], models: Path, names: Sequence[str]) -> dict[str, Any]:
    """The cases under these flags, in one engine. Raises RuntimeError when not all of them were run."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        (base / "models").symlink_to(models.resolve())
        with running_engine(base, flags) as port:
            began_seconds = time.monotonic()
            asked = ["--url", f"http://127.0.0.1:{port}", "--family", FAMILY, "--timeout", str(CASE_SECONDS)]
            told = subprocess.run(
                [sys.executable, "-m", "tests.parity.compare", *asked, "--only", *names],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
            took_seconds = time.monotonic() - began_seconds
            memory = ask(port, "GET", "/api/v1/memory")
    seconds, failed = read_lines(told.stdout.splitlines())
    if set(seconds) != set(names):
        raise RuntimeError(f"{len(seconds)} of {len(names)} cases were run\n{told.stdout[-2000:]}")
    return {
        "flags": " ".join(flags),
        "passed": [name for name in seconds if name not in failed],
        "failed": failed,
        "seconds": round(took_seconds),
        "memory": memory_of(memory),
    }


def memory_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts of the pool from a report of `/api/v1/memory`."""
    steps = {name: count for name, count in report["relief_steps"].items() if count}
    return {"state": report["state"], **report["counts"], "relief_steps": steps}


def add_to_results(name: str, outcome: Mapping[str, Any], num_cases: int, path: Path) -> None:
    kept = json.loads(path.read_text("utf-8")) if path.exists() else {"sets": {}}
    sets = {**kept["sets"], name: _together(kept["sets"].get(name), outcome, num_cases)}
    report = {
        "machine": describe_cpu(),
        "sets": {known: sets[known] for known in SETS if known in sets},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


def _together(before: Mapping[str, Any] | None, outcome: Mapping[str, Any], num_cases: int) -> dict[str, Any]:
    """Merge the earlier results of a set of flags with new ones. A case that is run again counts as it ended last."""
    passed, failed = set(outcome["passed"]), dict(outcome["failed"])
    seconds, memory = outcome["seconds"], dict(outcome["memory"])
    if before is not None:
        passed |= {name for name in before["passed"].split() if name not in failed}
        failed |= {name: told for name, told in before["failed"].items() if name not in passed}
        seconds += before["seconds"]
        memory = _sum(before["memory"], memory)
    return {
        "measured": time.strftime("%Y-%m-%d"),
        "flags": outcome["flags"],
        "num_passed": len(passed),
        "num_not_run": num_cases - len(passed) - len(failed),
        "passed": " ".join(sorted(passed)),
        "failed": failed,
        "seconds": seconds,
        "memory": memory,
    }


def _sum(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Counts added up, also those further in; of anything else the second."""
    summed = {**first, **second}
    for key in first.keys() & second.keys():
        if isinstance(first[key], Mapping):
            summed[key] = _sum(first[key], second[key])
        elif isinstance(first[key], int):
            summed[key] = first[key] + second[key]
    return summed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmark.parity_flags", description=__doc__)
    parser.add_argument("--models", type=Path, required=True, help="models directory with the files of the cases")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS), metavar="NAME")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="GLOB", help="cases to run")
    parser.add_argument("--leave-out", nargs="+", default=[], metavar="GLOB", help="cases not to run")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    names = chosen(CASES, given.only, given.leave_out)
    num_cases = len(chosen(CASES, ["*"], []))
    num_failed = 0
    for name in given.sets:
        outcome = run_set(SETS[name], given.models, names)
        add_to_results(name, outcome, num_cases, given.out)
        num_failed += len(outcome["failed"])
        print(f"{name}: {len(outcome['passed'])} passed, {len(outcome['failed'])} failed, {outcome['seconds']} s")
        for case, wrong in outcome["failed"].items():
            print(f"  {case}: {wrong}")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
