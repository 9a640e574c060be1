"""Peak of RAM while a checkpoint is loaded, besides the weights that stay.

    python -m benchmark.loading_peak [--family NAME …] [--scale small]

For each family a random checkpoint of that scale is written, float16, and loaded once by a process of its own, to the
CPU as float32. Before that, the process loads a small file, so that torch's own beginnings do not count. The kernel
reports the peak of anonymous memory: the mapped file is not in it. The result is printed and written to
benchmark/results/loading_peak.json. Linux alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmark.machine import describe_cpu
from darkroom.engine.families.registry import family_named
from darkroom.engine.models.load import LoadedCheckpoint, LoadTypes, load_checkpoint
from darkroom.engine.models.random_weights import write_random_checkpoint

RESULTS = Path(__file__).parent / "results" / "loading_peak.json"
STATUS = Path("/proc/self/status")
LOOK_SECONDS = 0.0005
MIB = 1 << 20
BAR_RATIO = 1.15
FAMILIES = ("sd15", "sd2", "sdxl", "sdxl_refiner", "zero123", "cascade")


def anonymous_bytes() -> int:
    """Return this process's memory that is no view of a file."""
    fields = dict(line.split(":", 1) for line in STATUS.read_text("utf-8").splitlines())
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


@contextmanager
def watched() -> Iterator[Callable[[], int]]:
    """Yield a function that returns, afterwards, the most memory there was beyond that at the start."""
    before, seen, is_over = anonymous_bytes(), [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(LOOK_SECONDS):
            seen.append(anonymous_bytes() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lambda: max(seen)
    finally:
        is_over.set()
        watcher.join()
        seen.append(anonymous_bytes() - before)


def weights_bytes(loaded: LoadedCheckpoint) -> int:
    """Return the bytes of the weights of a checkpoint's networks."""
    networks = (loaded.unet, loaded.text_encoder, loaded.vae)
    return sum(weight.nbytes for network in networks if network is not None for weight in network.parameters())


def measure(first: Path, path: Path) -> dict[str, float]:
    """Load `first`, then `path` under watch. In MiB."""
    load_checkpoint(first, LoadTypes())
    with watched() as most:
        loaded = load_checkpoint(path, LoadTypes())
    stays = weights_bytes(loaded)
    return {
        "file_mib": round(path.stat().st_size / MIB, 1),
        "stays_mib": round(stays / MIB, 1),
        "peak_mib": round(most() / MIB, 1),
        "peak_over_stays": round(most() / stays, 3),
    }


def measure_apart(first: Path, path: Path) -> dict[str, float]:
    """Measure in a process of its own, in which nothing was freed before that could be used again."""
    command = [sys.executable, "-m", "benchmark.loading_peak", "--measure", str(first), str(path)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the RAM that loading takes beside the weights that stay.")
    parser.add_argument("--family", action="append", help="repeatable")
    parser.add_argument("--scale", default="small")
    parser.add_argument("--measure", nargs=2, type=Path, metavar="FILE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(*arguments.measure)))
        return 0
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "first.safetensors"
        write_random_checkpoint(first, family=family_named("sd15"))
        for name in arguments.family or FAMILIES:
            path = Path(folder) / f"{name}.safetensors"
            write_random_checkpoint(path, arguments.scale, 1, family=family_named(name))
            found[name] = measure_apart(first, path)
            path.unlink()
    worst = max(item["peak_over_stays"] for item in found.values())
    result = {"machine": describe_cpu(), "scale": arguments.scale, "families": found, "worst": worst, "bar": BAR_RATIO}
    text = json.dumps(result, indent=2) + "\n"
    RESULTS.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0 if worst <= BAR_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
