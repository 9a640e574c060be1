"""Cost of weights that are not on the device: s/it of a UNet at full, half and a tenth of residency.

Part of `benchmark/gpu.py`. Besides: peak memory at each, GB/s of loading from the page cache, and how much of the
weights' way is hidden behind computing. Without a GPU a simulated device shows that it runs; its times mean nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from darkroom.engine.formats.fill import Destination
from darkroom.engine.formats.weight_source import source_of
from darkroom.engine.memory.device import Device, device_of
from darkroom.engine.memory.model_pool import ModelPool
from darkroom.engine.memory.offload.module_weights import ModuleWeights
from darkroom.engine.memory.plan import Limits
from darkroom.engine.memory.relief import MemorySavings
from darkroom.engine.memory.residency import Residency
from darkroom.engine.memory.simulated_device import SimulatedDevice
from darkroom.engine.memory.state import VramState
from darkroom.engine.memory.transfer_streams import PinnedMemory, TransferStreams
from darkroom.engine.models.load import LoadTypes, load_unet

GIB = 1 << 30
SHARES = (1.0, 0.5, 0.1)


@dataclass(frozen=True, slots=True)
class Workload:
    """A checkpoint file, the type its UNet is kept and computed in, and how long it runs on what."""

    path: Path
    dtype: torch.dtype
    side_px: int
    num_calls: int


def measure_residency(torch_name: str, work: Workload) -> dict[str, Any]:
    device = SimulatedDevice(64 * GIB) if torch_name == "cpu" else device_of(torch_name)
    loads = []
    for _ in range(3):
        handle, pool, _ = _model(device, work, num_streams=2)
        loads.append(_seconds(partial(_use, handle, lambda module: None), device))
        size_bytes = handle.size_bytes
        del handle, pool
    size_gb = size_bytes / 1e9
    told: dict[str, Any] = {"unet_gb": round(size_gb, 3), "load_gb_per_s": round(size_gb / min(loads), 2)}
    for share in SHARES:
        told[f"resident_{round(share * 100)}"] = _at(device, work, share)
    return told


def _at(device: Device, work: Workload, share: float) -> dict[str, Any]:
    """With copies beside computing, and one after the other; what the first hides of the copies' time."""
    together, peak, streamed_bytes = _seconds_per_call(device, work, share, num_streams=2)
    told = {"s_per_it": round(together, 5), "peak_mib": None if peak is None else peak >> 20}
    if share < 1.0:
        one_by_one, _, _ = _seconds_per_call(device, work, share, num_streams=0)
        alone, _, _ = _seconds_per_call(device, work, 1.0, num_streams=2)
        copying = max(one_by_one - alone, 1e-9)
        told["s_per_it_without_streams"] = round(one_by_one, 5)
        told["brought_mib_per_it"] = round(streamed_bytes / 2**20)
        told["overlap"] = round(min(1.0, max(0.0, (one_by_one - together) / copying)), 3)
    return told


def _seconds_per_call(
    device: Device, work: Workload, share: float, *, num_streams: int
) -> tuple[float, int | None, float]:
    """Seconds of one evaluation, the most memory at once, and the bytes that were brought for it."""
    handle, pool, streams = _model(device, work, num_streams=num_streams)
    pool.memory_savings = MemorySavings(weights_share=share)
    inputs = _inputs(device, work)
    seconds: list[float] = []

    def run(module: Any) -> None:
        module(*inputs)
        device.reset_peak()
        streams.streamed_bytes = 0
        for _ in range(work.num_calls):
            seconds.append(_seconds(lambda: module(*inputs), device))

    _use(handle, run)
    return statistics.median(seconds), device.peak_bytes(), streams.streamed_bytes / work.num_calls


def _model(device: Device, work: Workload, *, num_streams: int) -> tuple[Residency, ModelPool, TransferStreams]:
    unet = load_unet(work.path, LoadTypes(unet=work.dtype, to=Destination.DEVICE)).unet
    streams = TransferStreams(device, num_streams)
    pinned = PinnedMemory(device, 16 * GIB)
    pool = ModelPool(VramState.NORMAL_VRAM, limits=Limits(0, 0))
    weights = ModuleWeights("unet", unet, device=device, streams=streams, pinned=pinned, source=source_of(unet))
    return pool.add(weights, "unet"), pool, streams


def _inputs(device: Device, work: Workload) -> tuple[torch.Tensor, ...]:
    cells = work.side_px // 8
    unet = load_unet(work.path, LoadTypes(unet=work.dtype, to=Destination.DEVICE)).unet
    shapes = ((2, 4, cells, cells), (2,), (2, 77, unet.config.context_dim))
    return tuple(torch.ones(shape, dtype=work.dtype, device=device.torch_name) for shape in shapes)


def _use(handle: Residency, run: Callable[[Any], None]) -> None:
    with torch.inference_mode(), handle.in_use() as module:
        run(module)


def _seconds(work: Callable[[], object], device: Device) -> float:
    device.synchronize()
    began_seconds = time.perf_counter()
    work()
    device.synchronize()
    return time.perf_counter() - began_seconds
