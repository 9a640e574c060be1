"""Time of `python -m darkroom.worker` from the start of its process to its first answer, and until it is ready.

    python -m benchmark.front_start [--repeats 5] [--beside DIR]

DIR is another checkout, such as of an earlier version: both are started in turns, so that other load on the machine
meets both. Each start has an empty base directory, as a new container has, and an engine of its own on the CPU.
Bytecode is cached, as an installation has it. `cpu_seconds` is what the front's process computed until its first
answer: on a busy machine it says more than the time. Times are medians, in seconds; ratios are the other's over ours.
The result is printed and written to benchmark/results/front_start.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmark.engine_start import GIVE_UP_SECONDS, LOOK_SECONDS, ask, free_port
from benchmark.machine import describe_cpu, installed_environment

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "front_start.json"
GOAL_SECONDS = 0.8
STEPS = {"first_answer_seconds": "/live", "ready_seconds": "/ready"}


def environment(base: str, port: int, bytecode: str) -> dict[str, str]:
    own = {"BASE_DIRECTORY": base, "WORKER_PORT": str(port), "BENCHMARK": "off", "ENGINE_ARGS": "--cpu"}
    return installed_environment() | own | {"PYTHONPYCACHEPREFIX": bytecode}


def module_in(directory: Path, room: str) -> str:
    """Return the module of a room in a checkout, which was not below `darkroom` before version 0.2.0."""
    return f"darkroom.{room}" if (directory / "darkroom" / room).is_dir() else room


def start_once(directory: Path, bytecode: str) -> dict[str, float]:
    """Return the seconds of each step of one start. Raises RuntimeError when the front ends or does not get ready."""
    with tempfile.TemporaryDirectory() as base:
        port, found = free_port(), dict[str, float]()
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", module_in(directory, "worker")],
            cwd=directory,
            env=environment(base, port, bytecode),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            for step, path in STEPS.items():
                while ask(port, "GET", path) is None:
                    if process.poll() is not None or time.perf_counter() - began > GIVE_UP_SECONDS:
                        raise RuntimeError(f"the front did not start (exit code {process.returncode})")
                    time.sleep(LOOK_SECONDS)
                found[step] = time.perf_counter() - began
                if path == "/live":
                    found["cpu_seconds"] = cpu_seconds(process.pid)
            return found
        finally:
            process.terminate()
            process.wait()


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


def measure(directories: Mapping[str, Path], repeats: int) -> dict[str, dict[str, float]]:
    """Return medians by checkout; one more start of each before them fills its bytecode and the page cache."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in directories}
    with tempfile.TemporaryDirectory() as bytecode:
        for turn in range(repeats + 1):
            for name, directory in directories.items():
                times = start_once(directory, str(Path(bytecode, name)))
                if turn:
                    found[name].append(times)
    return {name: medians(times) for name, times in found.items()}


def medians(times: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {step: round(statistics.median(found[step] for found in times), 3) for step in times[0]}


def report(found: Mapping[str, Mapping[str, float]], repeats: int) -> dict[str, Any]:
    """Return the report to write."""
    ours, beside = found["ours"], found.get("beside")
    ratios = None if beside is None else {step: round(beside[step] / ours[step], 2) for step in ours}
    is_met = ours["first_answer_seconds"] <= GOAL_SECONDS
    return {
        "machine": describe_cpu() | {"load_average": round(os.getloadavg()[0], 1)},
        "goal_seconds": GOAL_SECONDS,
        "is_met": is_met,
        "starts": repeats,
        "ours": ours,
        "beside": beside,
        "ratios": ratios,
    }


def show(result: Mapping[str, Any]) -> None:
    table = Table("", "ours", "beside", "ratio", title="seconds from the start of the process")
    for step, seconds in result["ours"].items():
        other, ratio = ((result[name] or {}).get(step, "-") for name in ("beside", "ratios"))
        table.add_row(step.removesuffix("_seconds"), str(seconds), str(other), str(ratio))
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--beside", type=Path, default=None, help="another checkout to start in turns with this one")
    parser.add_argument("--note", default=None, help="anything a reader of the result must know")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    directories = {"ours": ROOT} | ({"beside": given.beside.resolve()} if given.beside else {})
    result = report(measure(directories, given.repeats), given.repeats) | ({"note": given.note} if given.note else {})
    show(result)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if result["is_met"] else 1


if __name__ == "__main__":
    sys.exit(main())
