"""Streams with cast buffers, through which blocks whose weights stay in RAM reach the device just in time.

Each `TransferStream` is a stream and one cast buffer on the device. They are used in rotation: while a block computes
from the buffer of one, the weights of the next block are copied on the stream of another. A buffer is filled again only
after the block that computed from it; a block computes only after its weights have arrived. The device reads sources in
pinned memory by itself (DMA), so that the calling thread never waits for a copy.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from darkroom.engine.memory import machine_memory
from darkroom.engine.memory.device import Device, Dtype, Stream, Tensor

ALIGNMENT_BYTES = 256
PINNED_SHARE_LINUX = 0.95  # of RAM; other systems let a process have less
PINNED_SHARE_ELSEWHERE = 0.45
RECHECK_BYTES = 64 << 20  # how much is pinned between two looks at the free RAM


def _spare_bytes() -> int:
    return machine_memory.spare_bytes(machine_memory.available_bytes(), machine_memory.total_bytes())


def padded(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def conversion_bytes(source: Tensor, dtype: Dtype) -> int:
    """Return the buffer bytes that `TransferStream.bring` takes, besides the result, to convert a source from RAM."""
    return 0 if source.dtype == dtype else padded(source.nbytes)


class TransferStream:
    """One stream with its cast buffer."""

    def __init__(self, device: Device, stream: Stream) -> None:
        self._device = device
        self._stream = stream
        self._buffer: Tensor | None = None
        self._taken_bytes = 0
        self._free_from: Any = None  # the event after which the buffer may be filled again

    @property
    def buffer_bytes(self) -> int:
        return 0 if self._buffer is None else self._buffer.nbytes

    def open(self, num_bytes: int) -> None:
        """Allocate a buffer of at least `num_bytes`. Raises `OutOfMemory`."""
        if self.buffer_bytes < num_bytes:
            self._buffer = None
            self._buffer = self._device.empty_bytes(num_bytes)
            self._free_from = self._device.mark(None)

    def close(self) -> None:
        self._buffer = None

    def begin(self) -> None:
        """Begin to fill the buffer for another block."""
        self._taken_bytes = 0
        if self._free_from is not None:
            self._device.wait(self._stream, self._free_from)

    def bring(self, source: Tensor, dtype: Dtype, *, channels_last: bool, is_computed: bool = False) -> Tensor:
        """Return the values of `source` as `dtype` in the buffer, valid once `arrive` was called.

        `is_computed`: the computing stream has just made `source`, and copies it in order. A source in RAM is copied
        in its own type into `conversion_bytes` of the buffer, and cast on the device.
        """
        target = self._take(source, dtype, channels_last=channels_last)
        if is_computed:
            self._device.copy(None, target, source)
            return target
        if conversion_bytes(source, dtype):
            unconverted = self._take(source, source.dtype, channels_last=channels_last)
            self._device.copy(self._stream, unconverted, source)
            source = unconverted
        self._device.copy(self._stream, target, source)
        return target

    def reserve(self, shape: Sequence[int], dtype: Dtype) -> Tensor:
        """Return the next part of the buffer, uninitialised, for values of that shape that the caller computes."""
        assert self._buffer is not None, "a stream without a buffer"
        num_bytes = math.prod(shape) * dtype.itemsize
        flat = self._buffer[self._taken_bytes : self._taken_bytes + num_bytes]
        self._taken_bytes += padded(num_bytes)
        return flat.view(dtype).view(shape)

    def _take(self, like: Tensor, dtype: Dtype, *, channels_last: bool) -> Tensor:
        """Return the next part of the buffer, uninitialised, in that shape and layout."""
        assert self._buffer is not None, "a stream without a buffer"
        num_bytes = like.numel() * dtype.itemsize
        flat = self._buffer[self._taken_bytes : self._taken_bytes + num_bytes]
        self._taken_bytes += padded(num_bytes)
        shape = like.shape
        if channels_last:
            return flat.view(dtype).view(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)
        return flat.view(dtype).view(shape)

    def arrive(self) -> None:
        """Make the computing stream wait for the copies."""
        if self._stream is not None:
            self._device.wait(None, self._device.mark(self._stream))
        if self._device.charges_blocks and self._buffer is not None:
            self._device.uses(self._buffer)

    def end(self) -> None:
        """Mark the buffer as free once the block that was launched has computed."""
        self._free_from = self._device.mark(None)


class TransferStreams:
    """Transfer streams of one device, shared by the blocks of all its models in rotation.

    With `num_streams` 0 there is one buffer, filled on the computing stream.
    """

    def __init__(self, device: Device, num_streams: int = 2) -> None:
        self._device = device
        self._streams = [TransferStream(device, device.new_stream()) for _ in range(num_streams)] or [
            TransferStream(device, None)
        ]
        self._num_open = 0
        self._next = 0
        self.num_streamed = 0
        self.streamed_bytes = 0

    @property
    def max_buffers(self) -> int:
        return len(self._streams)

    @property
    def num_open(self) -> int:
        return self._num_open

    @property
    def buffers_bytes(self) -> int:
        """Bytes of the buffers on the device now."""
        return sum(stream.buffer_bytes for stream in self._streams)

    @property
    def largest_buffer_bytes(self) -> int:
        return max(stream.buffer_bytes for stream in self._streams)

    def open(self, num_buffers: int, buffer_bytes: int) -> None:
        """Allocate that many buffers, each at least so large, and keep those that exist. Raises `OutOfMemory`."""
        for stream in self._streams[: max(num_buffers, self._num_open)]:
            if stream.buffer_bytes and stream.buffer_bytes < buffer_bytes:
                self._device.synchronize()
            stream.open(buffer_bytes)
        self._num_open = max(num_buffers, self._num_open)

    def close(self) -> None:
        """Free the buffers."""
        if self._num_open:
            self._device.synchronize()
        for stream in self._streams:
            stream.close()
        self._num_open = 0

    def shrink(self, num_bytes: int) -> int:
        """Free buffers between two blocks, all but one, until `num_bytes` are free; return the bytes freed."""
        before = self.buffers_bytes
        if self._num_open > 1:
            self._device.synchronize()
        while self._num_open > 1 and before - self.buffers_bytes < num_bytes:
            self._num_open -= 1
            self._streams[self._num_open].close()
        return before - self.buffers_bytes

    def next(self, num_bytes: int, buffer_bytes: int = 0) -> TransferStream:
        """Return the stream for the next block, of which `num_bytes` are copied, with a buffer of at least that size.

        A buffer that is too small for an unplanned block is enlarged. Raises `OutOfMemory`.
        """
        if not self._num_open or self._streams[self._next % self._num_open].buffer_bytes < buffer_bytes:
            self.open(max(1, self._num_open), buffer_bytes)
        stream = self._streams[self._next % self._num_open]
        self._next += 1
        self.num_streamed += 1
        self.streamed_bytes += num_bytes
        stream.begin()
        return stream


class PinnedMemory:
    """Copies of weights in pinned (page-locked) memory, up to a limit. Counted until they are freed.

    The system can neither swap nor drop them: none is made that would leave less free than everything else needs, by
    the machine's account and by that of every control group (cgroup) around the process.
    """

    def __init__(self, device: Device, limit_bytes: int, spare_bytes: Callable[[], int] = _spare_bytes) -> None:
        self._device = device
        self._spare_bytes = spare_bytes
        self._spare_now = 0  # as of the last reading, less what was pinned since
        self._until_recheck = 0  # bytes to pin before the next reading
        self.limit_bytes = limit_bytes
        self.pinned_bytes = 0

    def pin(self, tensor: Tensor) -> Tensor | None:
        """Return a pinned copy, or None where the limit, the free RAM or the system allows none."""
        num_bytes = self._device.pinned_cost(tensor.nbytes)
        if self.pinned_bytes + num_bytes > self.limit_bytes or not self._has_ram_for(num_bytes):
            return None
        copy = self._device.pinned_like(tensor)
        if copy is None:
            self.limit_bytes = self.pinned_bytes  # so that the system is not asked for each weight
        else:
            self.pinned_bytes += num_bytes
            weakref.finalize(copy.untyped_storage(), self._unpinned, num_bytes)
        return copy

    def _has_ram_for(self, num_bytes: int) -> bool:
        if self._until_recheck <= 0:
            self._spare_now, self._until_recheck = self._spare_bytes(), RECHECK_BYTES
        self._spare_now -= num_bytes
        self._until_recheck -= num_bytes
        return self._spare_now >= 0

    def _unpinned(self, num_bytes: int) -> None:
        self.pinned_bytes -= num_bytes
