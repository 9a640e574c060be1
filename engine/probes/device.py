"""Benchmark of the device's separate operations, and a check that it computes correctly.

It explains a benchmark's speed by arithmetic, memory, and transfers from the host. It runs on the thread that runs
prompts.

The fixed computation is a product of matrices of -1, 0 and 1 whose sums are whole numbers below 1024. Every type from
float16 up holds them exactly, in any order of addition, so its checksum is one known number on every device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from darkroom.engine.memory import device as devices

MIB = 1024**2
BUDGET_SECONDS = 0.15  # for each figure

WITH_OWN_MEMORY = ("cuda", "xpu")

FIXED_SIDE = 1024
FIXED_ROUNDS = 4
FIXED_CHECKSUM = -324930236
CHECKSUM_PRIME = 65_521


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """Measured figures of a device: GB are 1e9 bytes, TFLOP 1e12 operations; None for what it lacks.

    `fault` describes how it computed wrongly.
    """

    matrix_type: str
    matrix_tflops: float
    memory_gb_per_second: float
    host_to_device_gb_per_second: float | None
    fault: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Amount:
    """Amounts of computation and data; small on a CPU, where each figure must still take only a tenth of a second."""

    matrix_type: torch.dtype
    matrix_side: int
    copied_bytes: int


GPU_AMOUNT = Amount(torch.float16, 8192, 128 * MIB)  # a smaller product does not fill the largest cards
CPU_AMOUNT = Amount(torch.float32, 768, 32 * MIB)


def measure(device: str) -> DeviceFigures:
    """Measure the device, which takes about a second. Raises `OutOfMemory` and `DeviceLost`."""
    began_seconds = time.perf_counter()
    kind = torch.device(device).type
    amount = CPU_AMOUNT if kind == "cpu" else GPU_AMOUNT
    with torch.inference_mode(), devices.translate_device_error():
        faults = [find_wrong_product(device)]
        tflops = measure_matrix(device, amount)
        memory, fault = measure_memory(device, amount)
        faults.append(fault)
        from_host = None
        if kind in WITH_OWN_MEMORY:
            from_host, fault = measure_from_host(device, amount)
            faults.append(fault)
    devices.empty_cache(device)
    return DeviceFigures(
        matrix_type=str(amount.matrix_type).removeprefix("torch."),
        matrix_tflops=tflops,
        memory_gb_per_second=memory,
        host_to_device_gb_per_second=from_host,
        fault=next((fault for fault in faults if fault), None),
        seconds=time.perf_counter() - began_seconds,
    )


def measure_matrix(device: str, amount: Amount) -> float:
    """Measure the TFLOP/s of the product of two square matrices of random numbers.

    Cards multiply equal numbers faster: fewer bits change, so that their clocks stay higher.
    """
    side = amount.matrix_side
    generator = torch.Generator(device).manual_seed(0)  # the process's own belongs to samplers
    first, second = (
        torch.randn(side, side, dtype=amount.matrix_type, device=device, generator=generator) for _ in range(2)
    )
    out = torch.empty_like(first)
    seconds = seconds_of(lambda: torch.mm(first, second, out=out), device)
    return 2 * side**3 / seconds / 1e12


def measure_memory(device: str, amount: Amount) -> tuple[float, str | None]:
    """Measure the GB/s read and written by a copy within the device's memory; report a copy that differs."""
    source = pattern(amount.copied_bytes, device)
    copy = torch.empty_like(source)
    seconds = seconds_of(lambda: copy.copy_(source), device)
    fault = None if torch.equal(copy, source) else "A copy within the device's memory differs from what was copied"
    return 2 * amount.copied_bytes / seconds / 1e9, fault


def measure_from_host(device: str, amount: Amount) -> tuple[float, str | None]:
    """Measure the GB/s from pinned memory of the host; report data that differs after the way back."""
    source = pattern(amount.copied_bytes, "cpu").pin_memory()
    copy = torch.empty_like(source, device=device)
    seconds = seconds_of(lambda: copy.copy_(source, non_blocking=True), device)
    fault = None if torch.equal(copy.cpu(), source) else "What was copied to the device came back different"
    return amount.copied_bytes / seconds / 1e9, fault


def pattern(num_bytes: int, device: str) -> torch.Tensor:
    """Return int32 `[num_bytes / 4]` with all bits in use."""
    return torch.arange(num_bytes // 4, dtype=torch.int32, device=device) * -1_640_531_527


def seconds_of(work: Callable[[], object], device: str) -> float:
    """Return the seconds of one call, warmed up: the better of two rounds of as many calls as fit the budget."""
    for _ in range(2):
        work()
    devices.wait_for(device)
    num_calls = 1
    while True:
        seconds = _timed(work, device, num_calls)
        if seconds > BUDGET_SECONDS / 4 or num_calls >= 4096:
            break
        num_calls *= 2
    return min(seconds, _timed(work, device, num_calls)) / num_calls


def _timed(work: Callable[[], object], device: str, num_calls: int) -> float:
    began_seconds = time.perf_counter()
    for _ in range(num_calls):
        work()
    devices.wait_for(device)
    return time.perf_counter() - began_seconds


def find_wrong_product(device: str) -> str | None:
    """Return the error of the fixed computation, or None if it is right in every type and every round."""
    first, second = fixed_matrices()
    types = (torch.float32,) if torch.device(device).type == "cpu" else (torch.float16, torch.float32)
    for dtype in types:
        left, right = first.to(device, dtype), second.to(device, dtype)
        for _ in range(FIXED_ROUNDS if len(types) > 1 else 1):
            found = checksum((left @ right).cpu())
            if found != FIXED_CHECKSUM:
                name = str(dtype).removeprefix("torch.")
                return f"A fixed product of matrices in {name} has checksum {found}, not {FIXED_CHECKSUM}"
    return None


def fixed_matrices() -> tuple[torch.Tensor, torch.Tensor]:
    """Return two int64 matrices `[FIXED_SIDE, FIXED_SIDE]` of -1, 0 and 1, in an order without a regular pattern."""
    index = torch.arange(2 * FIXED_SIDE**2, dtype=torch.int64)
    mixed = (index * 2_654_435_761 + 12_345) % 4_294_967_296
    mixed = ((mixed >> 15) ^ mixed) * 1_540_483_477 % 4_294_967_296
    digits = (mixed >> 13) % 3 - 1
    first, second = digits.view(2, FIXED_SIDE, FIXED_SIDE)
    return first, second


def checksum(product: torch.Tensor) -> int:
    """Return the checksum of a matrix of whole numbers, each weighted by its place; below 2^53, as JSON requires."""
    weights = torch.arange(product.numel(), dtype=torch.int64) * 40_503 % CHECKSUM_PRIME
    whole = product.double().nan_to_num(nan=1e6, posinf=1e6, neginf=1e6).to(torch.int64)
    return int((whole.flatten() * weights).sum())
