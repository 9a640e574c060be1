"""Second load of a checkpoint against the reading of its file, and the cost of a model in the pool while it runs.

    python -m benchmark.model_loading --checkpoint FILE [--repeats 5] [--cold-repeats 3] [--cold-seconds 240]

FILE is a float16 .safetensors of Stable Diffusion 1, read once before anything is measured, so that all of it comes
from the page cache. Beside it, in the same run, the file is read plainly by one thread: into a buffer that is used
again, and into new memory as large as the file, which is what a load has to end in. Loads are to the CPU (weights kept
as the file has them, and as float32), and through staging to a simulated device, whose memory is RAM, too.

The same is measured of a cold file, which is dropped from the page cache before each way: there loads to the CPU read
past the page cache where the file system can. That takes as long as the disk does: `--cold-repeats` turns of those ways
that read all of the file at its own types, none begun after `--cold-seconds`. Run:ai Model Streamer
is measured beside them where the extra `readers` is installed.

Then the UNet of a small random checkpoint, where what a call costs besides arithmetic shows most, is called with its
weights in the pool and as a plain module, in turns. GB/s are the file's bytes. Ratios matter, not seconds; on a busy
machine what the processor did (all threads) says more than how long it took. The result is printed and written to
benchmark/results/model_loading.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmark.file_reading import drop
from benchmark.machine import describe_cpu
from benchmark.other_readers import readers_for
from darkroom.engine.formats.fill import Destination
from darkroom.engine.formats.weight_source import source_of
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.memory.offload.module_weights import ModuleWeights
from darkroom.engine.memory.simulated_device import SimulatedDevice
from darkroom.engine.models.load import LoadTypes, load_checkpoint
from darkroom.engine.models.random_weights import random_networks
from darkroom.engine.settings import EngineSettings

RESULTS = Path(__file__).parent / "results" / "model_loading.json"
READ_BYTES = 16 << 20
GIB = 1 << 30
FLOAT16 = LoadTypes(torch.float16, torch.float16, torch.float16)
SIDE_CELLS = 16
NUM_CALLS = 40


def read_again(path: Path) -> None:
    buffer = bytearray(READ_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def read_into_new_memory(path: Path) -> None:
    memory = torch.empty(path.stat().st_size, dtype=torch.uint8)
    left = memory.numpy().data
    with path.open("rb", buffering=0) as file:
        while left:
            left = left[file.readinto(left) :]


def load_to_device(path: Path) -> None:
    """Load a checkpoint to the device, as the engine does where weights are kept as the file has them."""
    loaded = load_checkpoint(path, replace(FLOAT16, to=Destination.DEVICE))
    device = SimulatedDevice(64 * GIB)
    for network in (loaded.unet, loaded.text_encoder, loaded.vae):
        ModuleWeights("part", network, device=device, source=source_of(network)).load()


WAYS: Mapping[str, Callable[[Path], object]] = {
    "plain_read": read_again,
    "plain_read_into_new_memory": read_into_new_memory,
    "cpu_as_in_the_file": lambda path: load_checkpoint(path, FLOAT16),
    "cpu_float32": lambda path: load_checkpoint(path, LoadTypes()),
    "staging_to_a_simulated_device": load_to_device,
}


COLD_WAYS: Mapping[str, Callable[[Path], object]] = {
    name: WAYS[name] for name in ("plain_read", "plain_read_into_new_memory", "cpu_as_in_the_file")
}


def ways_of(*, is_cold: bool) -> dict[str, Callable[[Path], object]]:
    """The ways to measure, with the readers of others that are installed."""
    return {**(COLD_WAYS if is_cold else WAYS), **readers_for("cpu")}


def measure_loads(path: Path, repeats: int, *, is_cold: bool = False, most_seconds: float = math.inf) -> dict[str, Any]:
    """GB/s of each way, all ways in turns, the best of each; and the ratio to the plain reads.

    No turn but the first is begun after `most_seconds`.
    """
    ways = ways_of(is_cold=is_cold)
    if not is_cold:
        read_again(path)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in ways}
    began = time.monotonic()
    for turn in range(repeats):
        if turn and time.monotonic() - began > most_seconds:
            break
        for name, way in ways.items():
            gc.collect()
            if is_cold:
                drop(path)
            began_seconds, cpu_began_seconds = time.perf_counter(), time.process_time()
            way(path)
            seconds[name].append(time.perf_counter() - began_seconds)
            cpu_seconds[name].append(time.process_time() - cpu_began_seconds)
    size_gb = path.stat().st_size / 1e9
    best = {name: min(taken) for name, taken in seconds.items()}
    return {
        "file_gb": round(size_gb, 3),
        "turns": len(seconds["plain_read"]),
        "gb_per_s": {name: round(size_gb / taken, 2) for name, taken in best.items()},
        "cpu_s_per_gb": {name: round(min(taken) / size_gb, 2) for name, taken in cpu_seconds.items()},
        "share_of_plain_read": {name: round(best["plain_read"] / taken, 2) for name, taken in best.items()},
        "share_of_plain_read_into_new_memory": {
            name: round(best["plain_read_into_new_memory"] / taken, 2) for name, taken in best.items()
        },
    }


@torch.inference_mode()
def measure_calls(num_calls: int = NUM_CALLS) -> dict[str, Any]:
    """Seconds of one evaluation with weights in the pool over those of a plain module, medians of calls in turns."""
    plain, _, _ = random_networks("small", 0, LoadTypes())
    pooled, _, _ = random_networks("small", 0, LoadTypes())
    handle = ModelMemory(EngineSettings(cpu=True)).keep("unet", pooled, role="unet")
    inputs = (
        torch.ones(2, 4, SIDE_CELLS, SIDE_CELLS),
        torch.ones(2),
        torch.ones(2, 77, plain.config.context_dim),
    )
    seconds: dict[str, list[float]] = {"plain": [], "pooled": []}
    with handle.in_use() as module:
        for _ in range(num_calls):
            for name, network in (("plain", plain), ("pooled", module)):
                began_seconds = time.perf_counter()
                network(*inputs)
                seconds[name].append(time.perf_counter() - began_seconds)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    return {
        **{f"{name}_ms": round(taken * 1000, 2) for name, taken in medians.items()},
        "ratio": round(medians["pooled"] / medians["plain"], 3),
        "ratio_of_best": round(min(seconds["pooled"]) / min(seconds["plain"]), 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.model_loading",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cold-repeats", type=int, default=3)
    parser.add_argument("--cold-seconds", type=float, default=240.0, help="no turn of cold loads is begun after these")
    parser.add_argument(
        "--only", nargs="+", choices=("second_load", "cold_load", "resident_calls"), help="other parts stay as they are"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "second_load": lambda: measure_loads(given.checkpoint, given.repeats),
        "cold_load": lambda: measure_loads(
            given.checkpoint, given.cold_repeats, is_cold=True, most_seconds=given.cold_seconds
        ),
        "resident_calls": measure_calls,
    }
    report: dict[str, Any] = {"num_threads": torch.get_num_threads()}
    if given.only and given.out.is_file():
        report |= json.loads(given.out.read_text(encoding="utf-8"))
    for name in given.only or parts:
        report[name] = {
            "measured": time.strftime("%Y-%m-%d"),
            "machine": {**describe_cpu(), "load_average": round(os.getloadavg()[0], 1)},
            **parts[name](),
        }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
