"""From the page cache to a device: several readers fill pinned chunks, a stream of the device empties them.

Nothing else is held in RAM, whatever the size of what is loaded. Weights go over as the file has them; where they are
wanted in another type or layout, the device changes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from engine.memory.device import Device, Tensor, as_bytes, fill

CHUNK_BYTES = 16 << 20
NUM_READERS = 4


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


class StagedUpload:
    """Made for one load, and closed after it."""

    def __init__(self, device: Device, *, chunk_bytes: int = CHUNK_BYTES, num_readers: int = NUM_READERS) -> None:
        self._device = device
        self._chunk_bytes = chunk_bytes
        self._stream = device.new_stream()
        self._readers = ThreadPoolExecutor(num_readers, thread_name_prefix="reader")
        self._chunks = deque(_Chunk(device.staging_bytes(chunk_bytes)) for _ in range(num_readers + 1))
        self._pieces: deque[_Piece] = deque()

    @property
    def staging_bytes(self) -> int:
        """What it holds in RAM."""
        return self._chunk_bytes * (len(self._chunks) + len(self._pieces))

    def run(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        """For each (target on the device, source in RAM): give the target the source's values.

        What is asked of the device afterwards finds them there. Raises `OutOfMemory`.
        """
        try:
            for target, source in pairs:
                self._begin(target, source)
            while self._pieces:
                self._pass_on()
            self._device.wait(None, self._device.mark(self._stream))
        finally:
            self._readers.shutdown()
            self._device.synchronize()

    def _begin(self, target: Tensor, source: Tensor) -> None:
        """Ask readers for the bytes of a tensor; those read before go on meanwhile."""
        is_raw = target.dtype == source.dtype and target.is_contiguous()
        landing = target if is_raw else self._device.landing_like(source)
        self._device.wait(self._stream, self._device.mark(None))
        from_bytes, to_bytes = as_bytes(source), as_bytes(landing)
        for start in range(0, from_bytes.numel(), self._chunk_bytes):
            part = slice(start, min(start + self._chunk_bytes, from_bytes.numel()))
            is_last = part.stop == from_bytes.numel() and not is_raw
            self._read(from_bytes[part], to_bytes[part], self._conversion(target, landing) if is_last else None)

    def _conversion(self, target: Tensor, landing: Tensor) -> Callable[[], None]:
        def convert() -> None:
            self._device.wait(None, self._device.mark(self._stream))
            self._device.copy(None, target, landing)

        return convert

    def _read(self, source: Tensor, target: Tensor, when_asked: Callable[[], None] | None) -> None:
        if not self._chunks:
            self._pass_on()
        chunk = self._chunks.popleft()
        if chunk.free_from is not None:
            self._device.wait_here(chunk.free_from)
        reading = self._readers.submit(fill, chunk.memory[: source.numel()], source)
        self._pieces.append(_Piece(reading, chunk, target, when_asked))

    def _pass_on(self) -> None:
        """Let the oldest piece go to the device."""
        piece = self._pieces.popleft()
        piece.reading.result()
        self._device.copy(self._stream, piece.target, piece.chunk.memory[: piece.target.numel()])
        piece.chunk.free_from = self._device.mark(self._stream)
        self._chunks.append(piece.chunk)
        if piece.when_asked is not None:
            piece.when_asked()
