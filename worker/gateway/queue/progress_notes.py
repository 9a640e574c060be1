"""ProgressNotes: the newest event of each job, and the news that followers read, in the memory of one gateway."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from typing import Final

from darkroom.worker.sources.broker import News

MAX_JOBS: Final = 20_000
MAX_NEWS: Final = 10_000


class ProgressNotes:
    """Owner of events as far as this gateway has heard of them."""

    def __init__(self) -> None:
        self._newest: OrderedDict[str, bytes] = OrderedDict()
        self._news: deque[News] = deque(maxlen=MAX_NEWS)
        self._position = 0
        self._changed = asyncio.Event()

    def add(self, job_id: str, event: bytes) -> None:
        """Note an event."""
        self._newest[job_id] = event
        self._newest.move_to_end(job_id)
        if len(self._newest) > MAX_JOBS:
            self._newest.popitem(last=False)
        self._position += 1
        self._news.append(News(str(self._position), job_id, event))
        self._changed.set()

    def newest(self, job_id: str) -> list[bytes]:
        """Return the newest event of a job, if one is known."""
        found = self._newest.get(job_id)
        return [] if found is None else [found]

    async def news(self, after: str, wait_seconds: float) -> list[News]:
        """Return events after a position, waiting for the first; the position of now for ""."""
        if not after:
            return [News(str(self._position), "", b"")]
        if int(after) >= self._position:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await self._changed.wait()
        num_new = min(self._position - int(after), len(self._news))
        return list(self._news)[len(self._news) - num_new :] if num_new > 0 else []
