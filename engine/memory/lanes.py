"""Lanes: how blocks whose weights stay in RAM come to the device just in time.

Each lane is a stream and one cast buffer on the device. The lanes take turns: while a block computes from the buffer of
one, the weights of the next come on the stream of another. A buffer is filled again only after the block that computed
from it; a block computes only after its weights have arrived. Sources in pinned memory are read by the device itself,
so that the thread that asks for the next block never waits.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from engine.memory import machine_memory
from engine.memory.device import Device, Dtype, Tensor

ALIGNMENT_BYTES = 256
PINNED_SHARE_LINUX = 0.95  # of RAM; other systems let a process have less
PINNED_SHARE_ELSEWHERE = 0.45
LOOK_BYTES = 64 << 20  # how much is pinned before it is looked again how much RAM is free


def _spare_bytes() -> int:
    return machine_memory.spare_bytes(machine_memory.available_bytes(), machine_memory.total_bytes())


def padded(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def landing_bytes(source: Tensor, dtype: Dtype) -> int:
    """What `Lane.bring` takes of a buffer besides the values themselves when it brings them from RAM."""
    return 0 if source.dtype == dtype else padded(source.nbytes)


class Lane:
    """One stream with its buffer."""

    def __init__(self, device: Device, stream: Any) -> None:
        self._device = device
        self._stream = stream
        self._buffer: Tensor | None = None
        self._taken_bytes = 0
        self._free_from: Any = None  # the mark after which the buffer may be filled again

    @property
    def buffer_bytes(self) -> int:
        return 0 if self._buffer is None else self._buffer.nbytes

    def open(self, num_bytes: int) -> None:
        """Have a buffer of at least so many bytes. Raises `OutOfMemory`."""
        if self.buffer_bytes < num_bytes:
            self._buffer = None
            self._buffer = self._device.empty_bytes(num_bytes)
            self._free_from = self._device.mark(None)

    def close(self) -> None:
        self._buffer = None

    def begin(self) -> None:
        """Take the buffer for another block."""
        self._taken_bytes = 0
        if self._free_from is not None:
            self._device.wait(self._stream, self._free_from)

    def bring(self, source: Tensor, dtype: Dtype, *, channels_last: bool, is_computed: bool = False) -> Tensor:
        """The values of `source` as `dtype` in the buffer, once `arrive` was called.

        `is_computed`: the device has just made it, so that it comes in the order of what computes. What comes from RAM
        comes as it is, into `landing_bytes` of the buffer, and is cast on the device.
        """
        target = self._take(source, dtype, channels_last=channels_last)
        if is_computed:
            self._device.copy(None, target, source)
            return target
        if landing_bytes(source, dtype):
            landing = self._take(source, source.dtype, channels_last=channels_last)
            self._device.copy(self._stream, landing, source)
            source = landing
        self._device.copy(self._stream, target, source)
        return target

    def _take(self, like: Tensor, dtype: Dtype, *, channels_last: bool) -> Tensor:
        """The next part of the buffer, uninitialised, in that shape and layout."""
        assert self._buffer is not None, "a lane without a buffer"
        num_bytes = like.numel() * dtype.itemsize
        flat = self._buffer[self._taken_bytes : self._taken_bytes + num_bytes]
        self._taken_bytes += padded(num_bytes)
        shape = like.shape
        if channels_last:
            return flat.view(dtype).view(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)
        return flat.view(dtype).view(shape)

    def arrive(self) -> None:
        """What computes from here on waits for the copies."""
        if self._stream is not None:
            self._device.wait(None, self._device.mark(self._stream))
        if self._device.charges_blocks and self._buffer is not None:
            self._device.uses(self._buffer)

    def end(self) -> None:
        """The block has been asked to compute; the buffer is free after that."""
        self._free_from = self._device.mark(None)


class Lanes:
    """The lanes of one device; blocks of all its models take them in turn. `num_streams` 0: one, without a stream."""

    def __init__(self, device: Device, num_streams: int = 2) -> None:
        self._device = device
        self._lanes = [Lane(device, device.new_stream()) for _ in range(num_streams)] or [Lane(device, None)]
        self._num_open = 0
        self._next = 0
        self.num_brought = 0
        self.brought_bytes = 0

    @property
    def max_buffers(self) -> int:
        return len(self._lanes)

    @property
    def num_open(self) -> int:
        return self._num_open

    @property
    def buffers_bytes(self) -> int:
        """What the buffers take on the device now."""
        return sum(lane.buffer_bytes for lane in self._lanes)

    @property
    def largest_buffer_bytes(self) -> int:
        return max(lane.buffer_bytes for lane in self._lanes)

    def open(self, num_buffers: int, buffer_bytes: int) -> None:
        """Have that many buffers, each at least so large; those there are already stay. Raises `OutOfMemory`."""
        for lane in self._lanes[: max(num_buffers, self._num_open)]:
            if lane.buffer_bytes and lane.buffer_bytes < buffer_bytes:
                self._device.synchronize()
            lane.open(buffer_bytes)
        self._num_open = max(num_buffers, self._num_open)

    def close(self) -> None:
        """Give the buffers back."""
        if self._num_open:
            self._device.synchronize()
        for lane in self._lanes:
            lane.close()
        self._num_open = 0

    def give(self, num_bytes: int) -> int:
        """Between two blocks: go on with fewer buffers, at least one, until so many bytes came free. What came free."""
        before = self.buffers_bytes
        if self._num_open > 1:
            self._device.synchronize()
        while self._num_open > 1 and before - self.buffers_bytes < num_bytes:
            self._num_open -= 1
            self._lanes[self._num_open].close()
        return before - self.buffers_bytes

    def next(self, num_bytes: int, buffer_bytes: int = 0) -> Lane:
        """The lane for the next block, of which so many bytes are brought, with a buffer of at least that size.

        A buffer that is too small for a block nobody thought of is made larger. Raises `OutOfMemory`.
        """
        if not self._num_open or self._lanes[self._next % self._num_open].buffer_bytes < buffer_bytes:
            self.open(max(1, self._num_open), buffer_bytes)
        lane = self._lanes[self._next % self._num_open]
        self._next += 1
        self.num_brought += 1
        self.brought_bytes += num_bytes
        lane.begin()
        return lane


class PinnedMemory:
    """Copies of weights in memory that the device reads by itself, up to a limit. Counted until they are gone.

    The system can neither swap nor drop them: none is made that would leave less free than everything else needs, by
    the machine's account and by that of every control group around the process.
    """

    def __init__(self, device: Device, limit_bytes: int, spare_bytes: Callable[[], int] = _spare_bytes) -> None:
        self._device = device
        self._spare_bytes = spare_bytes
        self._spare_now = 0  # as of the last look, less what was pinned since
        self._until_look = 0  # bytes to pin before the next one
        self.limit_bytes = limit_bytes
        self.pinned_bytes = 0

    def pin(self, tensor: Tensor) -> Tensor | None:
        """A pinned copy, or None where the limit, free RAM or the system allows none."""
        num_bytes = self._device.pinned_cost(tensor.nbytes)
        if self.pinned_bytes + num_bytes > self.limit_bytes or not self._has_ram_for(num_bytes):
            return None
        copy = self._device.pinned_like(tensor)
        if copy is None:
            self.limit_bytes = self.pinned_bytes  # so that it is not asked for each weight
        else:
            self.pinned_bytes += num_bytes
            weakref.finalize(copy.untyped_storage(), self._unpinned, num_bytes)
        return copy

    def _has_ram_for(self, num_bytes: int) -> bool:
        if self._until_look <= 0:
            self._spare_now, self._until_look = self._spare_bytes(), LOOK_BYTES
        self._spare_now -= num_bytes
        self._until_look -= num_bytes
        return self._spare_now >= 0

    def _unpinned(self, num_bytes: int) -> None:
        self.pinned_bytes -= num_bytes
