"""Upload from a file to a device: readers fill pinned staging buffers in the file's order, a stream empties them.

Nothing else is held in RAM, and the staging buffers (chunks) together stay below 1.2 times the largest tensor, whatever
the size of the model. Weights are copied in the file's type and layout; the device converts them where they are needed
in another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from darkroom.engine.memory.device import Device, Dtype, Tensor, as_bytes

MAX_CHUNK_BYTES = 16 << 20
MIN_CHUNK_BYTES = 64 << 10  # fewer chunks are better than smaller ones
MAX_CHUNKS = 5  # four readers fill some while the device empties another
MAX_CONVERSIONS = 2  # tensors that wait on the device for their conversion


class RawWeight(Protocol):
    """Weight in its file, in the file's type."""

    @property
    def dtype(self) -> Dtype: ...

    @property
    def num_bytes(self) -> int: ...

    def read_into(self, memory: Tensor, start: int) -> None:
        """Fill `memory` (RAM, uint8) with its bytes from offset `start` on. Thread-safe."""
        ...


@dataclass(eq=False, slots=True)
class _Chunk:
    memory: Tensor
    free_from: Any = None  # the event of the copy that empties it


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes in transit: in the chunk when the future is done, then to be copied to `target`."""

    reading: Future[None]
    chunk: _Chunk
    target: Tensor
    when_asked: Callable[[], None] | None


def plan_chunks(largest_bytes: int) -> tuple[int, int]:
    """Return number and size in bytes of chunks that take at most 1.2 times the largest tensor.

    Sizes are powers of two, as torch allocates no other sizes of pinned memory.
    """
    most_bytes = max(1, largest_bytes * 6 // 5)
    num_chunks = max(1, min(MAX_CHUNKS, most_bytes // MIN_CHUNK_BYTES))
    chunk_bytes = 1 << ((most_bytes // num_chunks).bit_length() - 1)
    return num_chunks, min(chunk_bytes, MAX_CHUNK_BYTES)


def max_conversion_bytes(largest_bytes: int) -> int:
    """Return the most that an upload takes on the device besides its targets."""
    return MAX_CONVERSIONS * largest_bytes


def upload(device: Device, pairs: Iterable[tuple[Tensor, RawWeight]], largest_bytes: int) -> None:
    """Copy each weight in a file to its target on the device.

    What is launched on the device afterwards reads the new values. `largest_bytes` is the size of the largest of the
    weights in the file. Raises `OutOfMemory`, and the errors of reading.
    """
    num_chunks, chunk_bytes = plan_chunks(largest_bytes)
    with ThreadPoolExecutor(max(1, num_chunks - 1), thread_name_prefix="reader") as readers:
        transfer = _Upload(device, readers, num_chunks, chunk_bytes)
        try:
            for target, weight in pairs:
                transfer.begin(target, weight)
            transfer.end()
        finally:
            device.synchronize()
            transfer.discard()


class _Upload:
    """State of one upload."""

    def __init__(self, device: Device, readers: ThreadPoolExecutor, num_chunks: int, chunk_bytes: int) -> None:
        self._device = device
        self._readers = readers
        self._chunk_bytes = chunk_bytes
        self._stream = device.new_stream()
        self._free = deque(_Chunk(device.staging_bytes(chunk_bytes)) for _ in range(num_chunks))
        self._pieces: deque[_Piece] = deque()
        self._num_conversions = 0

    def begin(self, target: Tensor, weight: RawWeight) -> None:
        """Schedule the reads of one weight, and copy what was read before meanwhile."""
        if not weight.num_bytes:
            return
        is_raw = target.dtype == weight.dtype and target.is_contiguous()
        unconverted = target if is_raw else self._conversion_buffer(target, weight.dtype)
        self._device.wait(self._stream, self._device.mark(None))
        to_bytes = as_bytes(unconverted)
        for start in range(0, weight.num_bytes, self._chunk_bytes):
            part = to_bytes[start : start + self._chunk_bytes]
            is_last = start + self._chunk_bytes >= weight.num_bytes
            convert = None if is_raw or not is_last else partial(self._convert, target, unconverted)
            self._read(weight, start, part, convert)

    def end(self) -> None:
        """Copy what is left, and make the computing stream wait for it."""
        while self._pieces:
            self._copy_oldest()
        self._device.wait(None, self._device.mark(self._stream))

    def discard(self) -> None:
        """Forget what a failure left in transit: a piece refers to its upload, and both would stay on the device."""
        self._pieces.clear()

    def _conversion_buffer(self, target: Tensor, dtype: Dtype) -> Tensor:
        """Return memory on the device for values before their conversion."""
        while self._num_conversions >= MAX_CONVERSIONS:
            self._copy_oldest()
        unconverted = self._device.empty(target.shape, dtype)
        self._num_conversions += 1
        return unconverted

    def _convert(self, target: Tensor, unconverted: Tensor) -> None:
        self._device.wait(None, self._device.mark(self._stream))
        self._device.copy(None, target, unconverted)
        self._num_conversions -= 1

    def _read(self, weight: RawWeight, start: int, target: Tensor, when_asked: Callable[[], None] | None) -> None:
        if not self._free:
            self._copy_oldest()
        chunk = self._free.popleft()
        if chunk.free_from is not None:
            self._device.wait_on_host(chunk.free_from)
        reading = self._readers.submit(weight.read_into, chunk.memory[: target.numel()], start)
        self._pieces.append(_Piece(reading, chunk, target, when_asked))

    def _copy_oldest(self) -> None:
        """Copy the oldest piece to the device."""
        piece = self._pieces.popleft()
        piece.reading.result()
        self._device.copy(self._stream, piece.target, piece.chunk.memory[: piece.target.numel()])
        piece.chunk.free_from = self._device.mark(self._stream)
        self._free.append(piece.chunk)
        if piece.when_asked is not None:
            piece.when_asked()
