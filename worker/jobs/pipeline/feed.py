"""JobFeed: notifications of changes by job."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any


class JobFeed:
    """Notifications of changes by job: streams wait for every change, synchronous requests for the end."""

    def __init__(self) -> None:
        self._waiters: dict[str, set[asyncio.Event]] = {}

    @contextlib.contextmanager
    def watch(self, job_id: str) -> Any:
        """Yield an event that is set at every change of the job."""
        event = asyncio.Event()
        self._waiters.setdefault(job_id, set()).add(event)
        try:
            yield event
        finally:
            waiters = self._waiters.get(job_id, set())
            waiters.discard(event)
            if not waiters:
                self._waiters.pop(job_id, None)

    def notify(self, job_id: str) -> None:
        for event in self._waiters.get(job_id, ()):
            event.set()

    def num_watching(self, job_id: str) -> int:
        return len(self._waiters.get(job_id, ()))
