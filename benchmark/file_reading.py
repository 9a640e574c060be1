"""Speed of reading a model file, cold and warm.

    python -m benchmark.file_reading [--gigabytes 1] [--repeats 3] [--folder DIR]

A file of random bytes is written to DIR and dropped from the page cache before each cold reading. Side by side, in
turns: one thread that reads it with `preadv` in blocks of 8 MiB, as `dd` does; the engine's readahead by four threads;
four threads with blocks of 8 MiB that bypass the page cache (O_DIRECT). Of a warm file the engine's readahead reads a
sample only. Medians; on a busy machine the ratios matter. The result is printed and written to
benchmark/results/file_reading.json.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmark.machine import describe_cpu
from darkroom.engine.formats.readahead import NUM_READERS, reading_ahead

RESULTS = Path(__file__).parent / "results" / "file_reading.json"
BLOCK_BYTES = 8 << 20
GOAL_SHARE = 0.9


def write_file(path: Path, num_bytes: int) -> None:
    with path.open("wb") as file:
        for _ in range(0, num_bytes, BLOCK_BYTES):
            file.write(os.urandom(BLOCK_BYTES))
        file.flush()
        os.fsync(file.fileno())


def drop(path: Path) -> None:
    """Drop a file from the page cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_plainly(path: Path) -> None:
    read_blocks(path, 1, 0)


def read_directly(path: Path) -> None:
    read_blocks(path, NUM_READERS, os.O_DIRECT)


def read_blocks(path: Path, num_threads: int, flags: int) -> None:
    """Read a file by several threads, each into one page-aligned buffer that is used again."""
    number, own = os.open(path, os.O_RDONLY | flags), threading.local()

    def read(start: int) -> None:
        if not hasattr(own, "block"):
            own.block = mmap.mmap(-1, BLOCK_BYTES)
        os.preadv(number, [own.block], start)

    try:
        with ThreadPoolExecutor(num_threads) as readers:
            list(readers.map(read, range(0, path.stat().st_size, BLOCK_BYTES)))
    finally:
        os.close(number)


def read_ahead(path: Path) -> None:
    with path.open("rb") as file, reading_ahead(file.fileno(), [(0, path.stat().st_size)]) as ahead:
        ahead.wait_for(path.stat().st_size)


WAYS: dict[str, Callable[[Path], None]] = {
    "one_thread": read_plainly, "engine_readahead": read_ahead, "direct": read_directly,
}  # fmt: skip


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that a call takes, and those that the process computes in it."""
    began, began_cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - began, time.process_time() - began_cpu


def measure_ways(path: Path, repeats: int, *, is_cold: bool) -> dict[str, dict[str, float]]:
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS if is_cold or name != "direct"}
    for _ in range(repeats):
        for name, times in found.items():
            if is_cold:
                drop(path)
            times.append(timed(partial(WAYS[name], path)))
    gigabytes = path.stat().st_size / 1e9
    return {
        name: {
            "gb_per_s": round(gigabytes / statistics.median(seconds for seconds, _ in times), 2),
            "cpu_s_per_gb": round(statistics.median(cpu for _, cpu in times) / gigabytes, 2),
        }
        for name, times in found.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="a folder on the disk to measure")
    parser.add_argument("--note", default=None, help="anything a reader of the result must know")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        path = Path(folder, "weights")
        write_file(path, int(given.gigabytes * 1e9))
        cold = measure_ways(path, given.repeats, is_cold=True)
        warm = measure_ways(path, given.repeats, is_cold=False)
    share = round(cold["engine_readahead"]["gb_per_s"] / cold["one_thread"]["gb_per_s"], 2)
    result: dict[str, Any] = {
        "machine": describe_cpu() | {"load_average": round(os.getloadavg()[0], 1)},
        "goal_share": GOAL_SHARE,
        "is_met": share >= GOAL_SHARE,
        "share_of_one_thread": share,
        "cold": cold,
        "warm": warm,
    } | ({"note": given.note} if given.note else {})
    Console().print_json(data=result)
    given.output.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if result["is_met"] else 1


if __name__ == "__main__":
    sys.exit(main())
