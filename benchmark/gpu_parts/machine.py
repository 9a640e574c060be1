"""The card and the machine around it: what the other figures cannot exceed."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sysconfig
import time
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmark.gpu_parts.bench import GB, GIB, MIB, Bench, median_seconds
from darkroom.engine.probes import device as device_probe

PACKAGES = ("torch", "triton", "numpy", "safetensors", "diffusers", "transformers", "torchsde", "comfy-kitchen")
QUERY = "name,driver_version,memory.total,clocks.sm,clocks.max.sm,power.limit,temperature.gpu,pcie.link.gen.current"


def measure(bench: Bench) -> None:
    bench.attempt("identity", note_identity, bench)
    bench.attempt("smi", note_smi, bench)
    side = 256 if bench.is_toy else 8192
    for name in ("bfloat16", "float16", "float32"):
        bench.attempt(f"matrix.{name}", note_product, bench, name, side)
    bench.attempt("matrix.float8", note_float8_product, bench, side)
    bench.attempt("matrix.int8", note_int8_product, bench, side)
    bench.attempt("copy", note_copies, bench)
    bench.attempt("launch", note_launches, bench)
    bench.attempt("disk", note_disk, bench)
    bench.attempt("probe", note_probe, bench)


def note_identity(bench: Bench) -> None:
    properties = torch.cuda.get_device_properties(0) if bench.is_gpu else None
    bench.note("name", platform.processor() or platform.machine() if properties is None else properties.name)
    bench.note("python", platform.python_version())
    bench.note("cuda", torch.version.cuda)
    cudnn: Any = torch.backends.cudnn
    bench.note("cudnn", cudnn.version() if bench.is_gpu else None)
    bench.note("cores", len(os.sched_getaffinity(0)))
    bench.note("ram_gib", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB)
    for name in PACKAGES:
        bench.note(name.replace("-", "_"), installed(name))
    # Triton compiles its launcher with the system's compiler, against Python's headers.
    bench.note("compiler", next((name for name in ("gcc", "clang", "cc") if shutil.which(name)), None))
    bench.note("has_python_headers", Path(sysconfig.get_paths()["include"], "Python.h").is_file())
    if properties is not None:
        bench.note("capability", list(torch.cuda.get_device_capability(0)))
        bench.note("multiprocessors", properties.multi_processor_count)
        bench.note("vram_gib", properties.total_memory / GIB)


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def note_smi(bench: Bench) -> None:
    bench.note("smi", smi())


def smi() -> dict[str, str] | None:
    """Return the report of the driver's own tool, None without it."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return dict(zip(QUERY.split(","), (item.strip() for item in done.stdout.splitlines()[0].split(",")), strict=True))


def note_product(bench: Bench, name: str, side: int) -> None:
    dtype = getattr(torch, name)
    first, second = (torch.randn(side, side, device=bench.device).to(dtype) for _ in range(2))
    seconds = median_seconds(lambda: first @ second, bench, budget_seconds=0.4)
    bench.note(f"matrix.{name}_tflops", 2 * side**3 / seconds / 1e12)


def note_float8_product(bench: Bench, side: int) -> None:
    if not bench.is_gpu:
        return
    first, second = (torch.randn(side, side, device=bench.device).to(torch.float8_e4m3fn) for _ in range(2))
    scale, columns = torch.ones((), device=bench.device), second.t()
    rows = torch.ones(side, 1, device=bench.device), torch.ones(1, side, device=bench.device)
    for way, left, right in (("tensor", scale, scale), ("row", *rows)):

        def product(left: torch.Tensor = left, right: torch.Tensor = right) -> torch.Tensor:
            return torch._scaled_mm(
                first, columns, scale_a=left, scale_b=right, out_dtype=torch.bfloat16, use_fast_accum=True
            )

        bench.note(
            f"matrix.float8_{way}_tflops", 2 * side**3 / median_seconds(product, bench, budget_seconds=0.3) / 1e12
        )


def note_int8_product(bench: Bench, side: int) -> None:
    first, second = (torch.randint(-127, 128, (side, side), dtype=torch.int8, device=bench.device) for _ in range(2))
    columns = second.t()
    seconds = median_seconds(lambda: torch._int_mm(first, columns), bench, budget_seconds=0.3)
    bench.note("matrix.int8_tops", 2 * side**3 / seconds / 1e12)


def note_copies(bench: Bench) -> None:
    num_bytes = (16 if bench.is_toy else 2048) * MIB
    source = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    seconds = median_seconds(lambda: target.copy_(source), bench, budget_seconds=0.3)
    bench.note("copy.device_gb_per_s", 2 * num_bytes / seconds / GB)
    if not bench.is_gpu:
        return
    for kind in ("pinned", "pageable"):
        host = torch.empty(num_bytes // 4, dtype=torch.uint8, pin_memory=kind == "pinned")
        part = source[: host.numel()]
        for name, into, out_of in (("to_device", part, host), ("to_host", host, part)):
            copy = partial(into.copy_, out_of, non_blocking=True)
            seconds = median_seconds(copy, bench, budget_seconds=0.3)
            bench.note(f"copy.{name}_{kind}_gb_per_s", host.numel() / seconds / GB)


def note_launches(bench: Bench) -> None:
    """Note what a small kernel costs by itself, and in a graph of a hundred."""
    value = torch.zeros(256, device=bench.device)
    num = 100

    def work() -> None:
        for _ in range(num):
            value.add_(1.0)

    bench.note("launch.microseconds", median_seconds(work, bench, budget_seconds=0.2) / num * 1e6)
    if bench.is_gpu:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        bench.note("launch.in_graph_microseconds", median_seconds(graph.replay, bench, budget_seconds=0.2) / num * 1e6)


def note_disk(bench: Bench) -> None:
    """Note how fast the folder of the checkpoints writes, and reads what is not in the page cache."""
    path, num_bytes = bench.own / "disk.bin", (8 if bench.is_toy else 1024) * MIB
    data = os.urandom(4 * MIB)
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(num_bytes // len(data)):
            file.write(data)
        os.fsync(file.fileno())
        bench.note("disk.write_gb_per_s", num_bytes / (time.perf_counter() - began) / GB)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    buffer = bytearray(16 * MIB)
    for way in ("cold", "warm"):
        began = time.perf_counter()
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
        bench.note(f"disk.read_{way}_gb_per_s", num_bytes / (time.perf_counter() - began) / GB)
    path.unlink()


def note_probe(bench: Bench) -> None:
    """Note the engine's own figures of the device. Raises RuntimeError where it computes wrongly."""
    found = device_probe.measure(bench.device)
    bench.note("probe.matrix_tflops", found.matrix_tflops)
    bench.note("probe.memory_gb_per_second", found.memory_gb_per_second)
    bench.note("probe.host_to_device_gb_per_second", found.host_to_device_gb_per_second)
    if found.fault is not None:
        raise RuntimeError(found.fault)
