"""Seconds of an image by how the threads of OpenMP wait for one another, on a quiet and on a busy processor.

    python -m benchmark.processor_waiting [--rounds 3]

Every engine draws the image of `benchmark.demo_speed` in turn, first alone, then beside as many processes that only
compute as there are cores, and twice as many. The GNU library's threads check a barrier `GOMP_SPINCOUNT` times before
they sleep (300,000 by default where there are no more threads than cores); on a busy processor each check takes the
time of the thread that it waits for. The result is written to benchmark/results/processor_waiting.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from benchmark.comfyui_speed import ROOT, Engine, run_prompt, serving
from benchmark.demo_speed import prompt_of
from benchmark.machine import describe_cpu

RESULTS = Path(__file__).parent / "results" / "processor_waiting.json"
WAYS: dict[str, dict[str, str]] = {
    "library_default": {"GOMP_SPINCOUNT": "300000"},
    "spin_30000": {"GOMP_SPINCOUNT": "30000"},
    "spin_10000": {"GOMP_SPINCOUNT": "10000"},
    "spin_5000": {"GOMP_SPINCOUNT": "5000"},
    "spin_3000": {"GOMP_SPINCOUNT": "3000"},
    "spin_1000": {"GOMP_SPINCOUNT": "1000"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "one_thread": {"OMP_NUM_THREADS": "1"},
}


@contextmanager
def load(num_processes: int) -> Iterator[None]:
    """Keep so many processes computing."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def measure(num_rounds: int, names: Sequence[str], loads: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each image, by the number of other processes a core and by way."""
    cores = len(os.sched_getaffinity(0))
    seconds: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        models = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        command = [sys.executable, "-m", "darkroom.engine"]
        ports = {
            name: stack.enter_context(serving(Engine(name, command, ROOT, "float32", environment), models, cores))
            for name, environment in WAYS.items()
            if name in names
        }
        for port in ports.values():
            run_prompt(port, prompt_of(0))  # loads the model
        seeds = itertools.count(1)  # never the same again, or the engine would answer from its cache
        for others in loads:
            taken = seconds.setdefault(f"{others}_others_a_core", {name: [] for name in ports})
            with load(others * cores):
                for seed in itertools.islice(seeds, num_rounds):
                    for name, port in ports.items():
                        taken[name].append(round(run_prompt(port, prompt_of(seed)), 2))
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--loads", nargs="+", type=int, default=[0, 1, 2], help="other processes a core")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    seconds = measure(given.rounds, given.ways, given.loads)
    medians = {
        load: {name: statistics.median(values) for name, values in ways.items()} for load, ways in seconds.items()
    }
    found = {
        "machine": describe_cpu(),
        "load_average_before": round(os.getloadavg()[0], 1),
        "seconds": medians,
        "times_as_fast_as_library_default": {
            load: {name: round(ways["library_default"] / value, 2) for name, value in ways.items()}
            for load, ways in medians.items()
            if "library_default" in ways
        },
        "spread": seconds,
    }
    Console().print_json(data=found)
    given.output.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
