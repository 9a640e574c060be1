"""From the file to the device and back: speeds, the first image of a new process, eviction and return."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmark.gpu_parts.bench import GB, Bench, run_cases, seconds_of, seconds_since_start
from benchmark.gpu_parts.runs import prompt_engine, run_prompt
from benchmark.gpu_parts.sampling import computing_engine
from benchmark.other_readers import readers_for
from benchmark.residency import Workload, measure_residency
from benchmark.small_models import workflow
from darkroom.engine import Engine
from darkroom.engine.families.registry import family_named
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.models.load import LoadTypes
from darkroom.engine.models.random_weights import random_networks
from darkroom.engine.models.saved_layout import (
    denoiser_tensors,
    description,
    text_tensors,
    vae_tensors,
    vocabulary_tensors,
)

CASE = "first_image"
FILE = "a.safetensors"  # as the workflow names it
ROUNDS = 3


def measure(bench: Bench) -> None:
    path = bench.attempt("write", write, bench, "sd15", checkpoint_path(bench))
    if path is not None:
        bench.attempt("file_to_device", measure_loading, bench, path)
        bench.attempt("start", measure_start, bench, least_seconds=5.0)
    bench.attempt("eviction", measure_eviction, bench, least_seconds=8.0)
    if path is not None:
        for name, read in readers_for(bench.device.partition(":")[0]).items():
            bench.attempt(name, note_reader, bench, name, read, path)
        bench.attempt("residency", note_residency, bench, path, least_seconds=10.0)


def note_reader(bench: Bench, name: str, read: Callable[[Path], object], path: Path) -> None:
    """Note GB/s of another project's reader to the device."""
    seconds = seconds_of(partial(read, path), bench)
    bench.note(f"other_readers.{name}_gb_per_s", path.stat().st_size / seconds / GB)


def checkpoint_path(bench: Bench) -> Path:
    return bench.base / "models" / "checkpoints" / FILE


def write(bench: Bench, name: str, path: Path) -> Path:
    """Write a checkpoint of random weights that are drawn on the device, float16."""
    family = family_named(name)
    kept = torch.float16 if bench.is_gpu else torch.float32
    unet, text, vae = random_networks(bench.scale, 0, LoadTypes(kept, kept, kept), bench.device, family=family)
    tensors = denoiser_tensors(family, unet.state_dict()) | vae_tensors(family, vae.state_dict())
    tensors |= text_tensors(family, text.state_dict())
    halved = {key: tensor.to("cpu", torch.float16).contiguous() for key, tensor in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    seconds = seconds_of(
        lambda: write_safetensors(path, halved | vocabulary_tensors(text), description(family, unet, vae)), bench
    )
    bench.note(f"write.{name}_gb", path.stat().st_size / GB)
    bench.note(f"write.{name}_gb_per_s", path.stat().st_size / seconds / GB)
    return path


def drop_from_cache(path: Path) -> None:
    """Let the next read of a file come from the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_loading(bench: Bench, path: Path) -> None:
    """Note GB/s from the file to weights on the device, as the engine loads them, with a warm and a cold page cache."""
    size = path.stat().st_size
    for way in ("warm", "cold"):
        found = []
        for _ in range(1 if bench.is_toy else ROUNDS):
            if way == "cold":
                drop_from_cache(path)
            with prompt_engine(bench, bench.base) as engine:
                found.append(seconds_of(partial(preload, engine), bench))
        bench.note(f"file_to_device.{way}_gb_per_s", size / min(found) / GB)
        bench.note(f"file_to_device.{way}_seconds", found)


def preload(engine: Engine) -> None:
    engine.preload("checkpoints", FILE).result()


def measure_start(bench: Bench) -> None:
    """Note the seconds from the start of a process to its first image on the disk, and of the next one."""
    (case,) = run_cases(bench, "load", [CASE], at_once=1, each_seconds=30.0)
    if case.reason is not None:
        raise RuntimeError(case.reason)
    bench.note("start", {"process_seconds": case.seconds, **case.figures})


def measure_case(bench: Bench, name: str) -> None:
    began = time.monotonic()
    side = 64 if bench.is_toy else 512
    with prompt_engine(bench, bench.base) as engine:
        prompt = workflow(second=None, lora=None, control=False, size=side, steps=2 if bench.is_toy else 20)
        run_prompt(engine, prompt)
        bench.note("engine_to_first_image_seconds", time.monotonic() - began)
        bench.note("first_image_seconds", seconds_since_start())
        prompt["9"]["inputs"]["seed"] = 6
        bench.note("next_image_seconds", seconds_of(lambda: run_prompt(engine, prompt), bench))


def measure_eviction(bench: Bench) -> None:
    """Note what it takes to bring SDXL's network out of the device and back, from its file."""
    folder = bench.own / "eviction"
    path = folder / "models" / "checkpoints" / "sdxl.safetensors"
    bench.attempt("write_sdxl", write, bench, "sdxl", path, least_seconds=15.0)
    if not path.is_file():
        return
    with computing_engine(bench, folder=folder) as engine:
        model = engine.models.checkpoint("sdxl.safetensors")[0]

        def use() -> None:
            with model.in_use():
                pass

        bench.note("eviction.first_seconds", seconds_of(use, bench))
        size = model.weights.size_bytes
        found: dict[str, list[Any]] = {"out_seconds": [], "back_seconds": []}
        for _ in range(1 if bench.is_toy else ROUNDS):
            found["out_seconds"].append(seconds_of(engine.memory.unload, bench))
            found["back_seconds"].append(seconds_of(use, bench))
        bench.note("eviction.gb", size / GB)
        for name, seconds in found.items():
            bench.note(f"eviction.{name}", min(seconds))
            bench.note(f"eviction.all_{name}", seconds)
        bench.note("eviction.back_gb_per_s", size / max(min(found["back_seconds"]), 1e-9) / GB)


def note_residency(bench: Bench, path: Path) -> None:
    """Note the steps of a UNet of which a half and a tenth is on the device, and how far the copies are hidden."""
    dtype = torch.float16 if bench.is_gpu else torch.float32
    work = Workload(path, dtype, 64 if bench.is_toy else 512, 2 if bench.is_toy else 5)
    for name, value in measure_residency(bench.device, work).items():
        bench.note(f"residency.{name}", value)
