"""ResultMemory and SpoolBudget: the bytes of results that a gateway has in memory, and in files while they arrive."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from darkroom.worker.errors import NotReady

MAX_SPOOLED_BYTES: Final = 2 * 1024 * 1024 * 1024
SPOOL_RETRY_SECONDS: Final = 2.0
MAX_BYTES: Final = 64 * 1024 * 1024
COPIES: Final = 6
"""A result as it arrives, parsed, written again, and sent: so much memory it takes while it is handled."""

LARGE_BYTES: Final = 256 * 1024
"""Results up to this size are not counted: each thread that reads jobs holds one."""


class ResultMemory:
    """Memory that results share, first come first served. One that is larger than all of it is handled alone."""

    def __init__(self, max_bytes: int = MAX_BYTES, num_copies: int = COPIES) -> None:
        self._max_bytes, self._num_copies = max_bytes, num_copies
        self._num_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def lease(self, size_bytes: int) -> AsyncIterator[None]:
        """Reserve the memory of a result of this size as long as the block lasts."""
        if size_bytes <= LARGE_BYTES:
            yield
            return
        num_bytes = size_bytes * self._num_copies
        await self._take(num_bytes)
        try:
            yield
        finally:
            self._num_bytes -= num_bytes
            self._let_in()

    async def _take(self, num_bytes: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((num_bytes, turn))
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was let in at this moment
                self._num_bytes -= num_bytes
            self._let_in()
            raise

    def _let_in(self) -> None:
        while self._waiting:
            num_bytes, turn = self._waiting[0]
            if not turn.cancelled():
                if self._num_bytes and self._num_bytes + num_bytes > self._max_bytes:
                    return
                self._num_bytes += num_bytes
                turn.set_result(None)
            self._waiting.popleft()


class SpoolBudget:
    """Bytes of results that have arrived and are not stored yet, in files: of all workers together."""

    def __init__(self, max_bytes: int = MAX_SPOOLED_BYTES) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0

    @contextlib.contextmanager
    def spooling(self) -> Iterator[Callable[[int], None]]:
        """Yield the counter of the bytes of one result, while the block lasts; NotReady where all is taken."""
        own = 0

        def count(num_bytes: int) -> None:
            nonlocal own
            if self.num_bytes + num_bytes > self._max_bytes:
                message = f"Results of other workers are arriving; got more than {self._max_bytes} bytes of them"
                raise NotReady(message, retry_after_seconds=SPOOL_RETRY_SECONDS)
            own += num_bytes
            self.num_bytes += num_bytes

        try:
            yield count
        finally:
            self.num_bytes -= own
