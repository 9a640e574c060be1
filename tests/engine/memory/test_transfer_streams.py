"""Weights on their way to a device: streams, casts, waiting, pinned memory; the simulated device checks the order."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from darkroom.engine.errors import OutOfMemory
from darkroom.engine.memory.device import AcceleratorDevice, Device
from darkroom.engine.memory.simulated_device import SimulatedDevice, StreamHazard
from darkroom.engine.memory.transfer_streams import RECHECK_BYTES, PinnedMemory, TransferStreams


def test_lanes_take_turns_and_their_memory_is_counted_and_given_back() -> None:
    device = SimulatedDevice(10_000)
    streams = TransferStreams(device, 2)
    streams.open(2, 1000)
    assert streams.buffers_bytes == device.charged_bytes == 2000
    first, second, third = streams.next(8), streams.next(8), streams.next(8)
    assert first is third and first is not second and streams.num_streamed == 3
    streams.open(1, 500)
    assert streams.buffers_bytes == 2000, "buffers that are there already stay"
    streams.close()
    assert device.charged_bytes == 0


def test_weights_arrive_in_the_type_and_layout_they_are_wanted_in() -> None:
    streams = TransferStreams(SimulatedDevice(10_000), 2)
    streams.open(2, 4096)
    source = torch.randn(4, 3, 2, 2)
    stream = streams.next(source.nbytes)
    brought = stream.bring(source, torch.float16, channels_last=True)
    small = stream.bring(source[0, 0], torch.float32, channels_last=False)
    stream.arrive()
    assert torch.equal(brought, source.half()) and brought.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(small, source[0, 0])


def test_what_is_wanted_in_another_type_comes_as_it_is_and_is_cast_on_the_device() -> None:
    class Watched(SimulatedDevice):
        copies: list[tuple[torch.dtype, torch.dtype, bool]] = []

        def copy(self, stream: Any, target: torch.Tensor, source: torch.Tensor) -> None:
            self.copies.append((source.dtype, target.dtype, stream is None))
            super().copy(stream, target, source)

    streams = TransferStreams(Watched(10_000), 1)
    streams.open(1, 4096)
    kept = torch.randn(4, 3, 2, 2).to(torch.float8_e4m3fn).to(memory_format=torch.channels_last)
    stream = streams.next(kept.nbytes)
    brought = stream.bring(kept, torch.float16, channels_last=True)
    stream.arrive()
    assert torch.equal(brought, kept.half()) and brought.is_contiguous(memory_format=torch.channels_last)
    float8, float16 = torch.float8_e4m3fn, torch.float16
    assert Watched.copies == [(float8, float8, False), (float8, float16, False)]
    stream.bring(kept, float16, channels_last=True, is_computed=True)
    assert Watched.copies[2:] == [(float8, float16, True)]


def test_reading_before_arrival_is_noticed() -> None:
    device = SimulatedDevice(10_000)
    stream, buffer = device.new_stream(), device.empty_bytes(16)
    device.copy(stream, buffer, torch.ones(16, dtype=torch.uint8))
    with pytest.raises(StreamHazard, match="before it has arrived"):
        device.uses(buffer)
    device.wait(None, device.mark(stream))
    device.uses(buffer)
    assert buffer.tolist() == [1] * 16


def test_overwriting_what_may_still_be_read_is_noticed() -> None:
    device = SimulatedDevice(10_000)
    stream, buffer = device.new_stream(), device.empty_bytes(16)
    device.uses(buffer)
    with pytest.raises(StreamHazard, match="overwrite"):
        device.copy(stream, buffer, torch.ones(16, dtype=torch.uint8))
    device.wait(stream, device.mark(None))
    device.copy(stream, buffer, torch.ones(16, dtype=torch.uint8))


def test_a_simulated_device_refuses_what_does_not_fit_until_memory_is_really_gone() -> None:
    device = SimulatedDevice(1000)
    tensor = device.empty_bytes(800)
    view = tensor[:10]
    del tensor
    gc.collect()
    with pytest.raises(OutOfMemory, match="200 of 1,000 bytes free; 300 were asked for"):
        device.empty_bytes(300)
    del view
    assert device.free_bytes() == 1000 and device.empty_bytes(1000).nbytes == 1000


def test_pinned_memory_ends_at_its_limit_and_comes_back() -> None:
    pinned = PinnedMemory(SimulatedDevice(0), 100, lambda: 1 << 40)
    first = pinned.pin(torch.zeros(20))
    assert first is not None and pinned.pinned_bytes == 80
    assert pinned.pin(torch.zeros(20)) is None
    del first
    assert pinned.pinned_bytes == 0 and pinned.pin(torch.zeros(20)) is not None


def test_pinned_memory_follows_what_ram_is_free() -> None:
    free = [3 * RECHECK_BYTES]
    looks = []

    def spare_bytes() -> int:
        looks.append(free[0])
        return free[0]

    device = Device()
    device.pinned_like = lambda tensor: torch.empty(4)  # type: ignore[method-assign]
    pinned = PinnedMemory(device, 1 << 40, spare_bytes)
    quarter = torch.empty(RECHECK_BYTES // 4, dtype=torch.uint8, device="meta")
    kept = []
    for _ in range(40):
        copy = pinned.pin(quarter)
        if copy is not None:
            kept.append(copy)
            free[0] -= RECHECK_BYTES // 4
    assert len(kept) == 12 and free[0] == 0 and len(looks) <= 11, "asked once for so many bytes"
    free[0] = RECHECK_BYTES
    assert any(pinned.pin(quarter) is not None for _ in range(5)), "again, once there is some"


def test_pinned_memory_is_counted_as_torch_takes_it_and_not_asked_for_again_once_refused() -> None:
    assert [AcceleratorDevice("cuda:0", "cuda").pinned_cost(size) for size in (1, 4096, 4097)] == [1, 4096, 8192]
    pinned = PinnedMemory(Device(), 1000)  # a device without it
    assert pinned.pin(torch.zeros(4)) is None and pinned.limit_bytes == 0
