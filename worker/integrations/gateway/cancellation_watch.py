"""CancellationWatch: one request that waits at the gateway for cancellations of the jobs that the worker holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

from darkroom.worker.sources.broker import BrokerUnreachable

POLL_SECONDS: Final = 15.0
AGAIN_SECONDS: Final = 1.0
HELD_SECONDS: Final = 5.0
"""Seconds for which a job is watched after it was last asked about; a worker asks once a second."""

Ask = Callable[[Collection[str], float], Awaitable[set[str]]]
"""Returns those of some jobs that are cancelled, as soon as there is one, none after a time."""


class CancellationWatch:
    """Jobs that are watched, and those of them that were found cancelled."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._asked_at: dict[str, float] = {}  # monotonic, by the ids of jobs
        self._cancelled: set[str] = set()
        self._changed = asyncio.Event()
        self._polling: asyncio.Task[None] | None = None

    def note(self, job_id: str) -> None:
        """Note that a job is cancelled."""
        self._asked_at[job_id] = time.monotonic()
        self._cancelled.add(job_id)

    def cancelled(self, job_ids: Iterable[str]) -> set[str]:
        """Return those of the jobs that are cancelled as far as is known, and watch the others."""
        ids, now = set(job_ids), time.monotonic()
        if not ids <= self._asked_at.keys():
            self._changed.set()
        self._asked_at |= dict.fromkeys(ids, now)
        if ids and (self._polling is None or self._polling.done()):
            self._polling = asyncio.create_task(self._poll(), name="gateway-cancellations")
        return ids & self._cancelled

    async def close(self) -> None:
        """End the request that waits."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait({self._polling})

    async def _poll(self) -> None:
        """Wait at the gateway until no job is watched; anew when there is another one."""
        while watched := self._watched():
            self._changed.clear()
            asking = asyncio.ensure_future(self._ask(watched, POLL_SECONDS))
            changing = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait({asking, changing}, return_when=asyncio.FIRST_COMPLETED)
                if asking.done():
                    self._cancelled |= asking.result()
            except BrokerUnreachable:
                await asyncio.sleep(AGAIN_SECONDS)
            finally:
                for task in (asking, changing):
                    task.cancel()

    def _watched(self) -> frozenset[str]:
        """Return the jobs to ask about, and forget those that the worker holds no longer."""
        before = time.monotonic() - HELD_SECONDS
        self._asked_at = {job_id: at for job_id, at in self._asked_at.items() if at >= before}
        self._cancelled &= self._asked_at.keys()
        return frozenset(self._asked_at) - self._cancelled
