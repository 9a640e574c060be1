"""From a file to a device: several readers fill pinned chunks in the file's order, a stream of the device empties them.

Nothing else is held in RAM, and the chunks together stay below 1.2 times the largest tensor, whatever the size of what
is loaded. Weights go over as the file has them; where they are wanted in another type or layout, the device changes
them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from engine.memory.device import Device, Dtype, Tensor, as_bytes

MOST_CHUNK_BYTES = 16 << 20
LEAST_CHUNK_BYTES = 64 << 10  # below it fewer chunks do more than smaller ones
MOST_CHUNKS = 5  # four readers fill some while the device empties another
MOST_LANDINGS = 2  # tensors that wait on the device to be changed


class RawWeight(Protocol):
    """A weight as its file has it."""

    @property
    def dtype(self) -> Dtype: ...

    @property
    def num_bytes(self) -> int: ...

    def read_into(self, memory: Tensor, start: int) -> None:
        """Fill `memory` (RAM, uint8) with its bytes from the `start`th on, on any thread."""
        ...


@dataclass(eq=False, slots=True)
class _Chunk:
    memory: Tensor
    free_from: Any = None  # the mark of the copy that empties it


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes on their way: read into the chunk when the future is done, then to go to `target`."""

    reading: Future[None]
    chunk: _Chunk
    target: Tensor
    when_asked: Callable[[], None] | None


def plan_chunks(largest_bytes: int) -> tuple[int, int]:
    """How many chunks of how many bytes take at most 1.2 times the largest tensor.

    Powers of two, as torch takes no other sizes of pinned memory.
    """
    most_bytes = max(1, largest_bytes * 6 // 5)
    num_chunks = max(1, min(MOST_CHUNKS, most_bytes // LEAST_CHUNK_BYTES))
    chunk_bytes = 1 << ((most_bytes // num_chunks).bit_length() - 1)
    return num_chunks, min(chunk_bytes, MOST_CHUNK_BYTES)


def landing_bytes_at_once(largest_bytes: int) -> int:
    """The most that an upload takes on the device besides its targets."""
    return MOST_LANDINGS * largest_bytes


def upload(device: Device, pairs: Iterable[tuple[Tensor, RawWeight]], largest_bytes: int) -> None:
    """For each (target on the device, weight in a file): give the target the weight's values.

    What is asked of the device afterwards finds them there. `largest_bytes` is the most that one of the weights has in
    the file. Raises `OutOfMemory`, and what reading raises.
    """
    num_chunks, chunk_bytes = plan_chunks(largest_bytes)
    with ThreadPoolExecutor(max(1, num_chunks - 1), thread_name_prefix="reader") as readers:
        passage = _Passage(device, readers, num_chunks, chunk_bytes)
        try:
            for target, weight in pairs:
                passage.begin(target, weight)
            passage.end()
        finally:
            device.synchronize()
            passage.let_go()


class _Passage:
    """One upload."""

    def __init__(self, device: Device, readers: ThreadPoolExecutor, num_chunks: int, chunk_bytes: int) -> None:
        self._device = device
        self._readers = readers
        self._chunk_bytes = chunk_bytes
        self._stream = device.new_stream()
        self._free = deque(_Chunk(device.staging_bytes(chunk_bytes)) for _ in range(num_chunks))
        self._pieces: deque[_Piece] = deque()
        self._num_landings = 0

    def begin(self, target: Tensor, weight: RawWeight) -> None:
        """Ask readers for the bytes of a weight; those read before go on meanwhile."""
        if not weight.num_bytes:
            return
        is_raw = target.dtype == weight.dtype and target.is_contiguous()
        landing = target if is_raw else self._landing(target, weight.dtype)
        self._device.wait(self._stream, self._device.mark(None))
        to_bytes = as_bytes(landing)
        for start in range(0, weight.num_bytes, self._chunk_bytes):
            part = to_bytes[start : start + self._chunk_bytes]
            is_last = start + self._chunk_bytes >= weight.num_bytes
            convert = None if is_raw or not is_last else partial(self._convert, target, landing)
            self._read(weight, start, part, convert)

    def end(self) -> None:
        while self._pieces:
            self._pass_on()
        self._device.wait(None, self._device.mark(self._stream))

    def let_go(self) -> None:
        """Of what a failure has left on the way: a piece holds its passage, and both would stay on the device."""
        self._pieces.clear()

    def _landing(self, target: Tensor, dtype: Dtype) -> Tensor:
        """Memory on the device for what only passes through."""
        while self._num_landings >= MOST_LANDINGS:
            self._pass_on()
        landing = self._device.empty(target.shape, dtype)
        self._num_landings += 1
        return landing

    def _convert(self, target: Tensor, landing: Tensor) -> None:
        self._device.wait(None, self._device.mark(self._stream))
        self._device.copy(None, target, landing)
        self._num_landings -= 1

    def _read(self, weight: RawWeight, start: int, target: Tensor, when_asked: Callable[[], None] | None) -> None:
        if not self._free:
            self._pass_on()
        chunk = self._free.popleft()
        if chunk.free_from is not None:
            self._device.wait_here(chunk.free_from)
        reading = self._readers.submit(weight.read_into, chunk.memory[: target.numel()], start)
        self._pieces.append(_Piece(reading, chunk, target, when_asked))

    def _pass_on(self) -> None:
        """Let the oldest piece go to the device."""
        piece = self._pieces.popleft()
        piece.reading.result()
        self._device.copy(self._stream, piece.target, piece.chunk.memory[: piece.target.numel()])
        piece.chunk.free_from = self._device.mark(self._stream)
        self._free.append(piece.chunk)
        if piece.when_asked is not None:
            piece.when_asked()
