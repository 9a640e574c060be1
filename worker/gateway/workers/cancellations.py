"""Cancellations: workers that wait to hear which of their jobs are to end. One look a second serves all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from darkroom.worker.sources.broker import Broker, BrokerUnreachable

LOOK_SECONDS: Final = 1.0


@dataclass(eq=False, slots=True)
class _Waiting:
    """A request that waits for cancellations among its jobs."""

    job_ids: frozenset[str]
    found: asyncio.Future[set[str]]


class Cancellations:
    """Owner of the requests that wait. `broker` is asked for all their jobs together."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: set[_Waiting] = set()
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, job_ids: Collection[str], seconds: float) -> set[str]:
        """Return those of the jobs that were cancelled as soon as there is one, none after this time."""
        waiting = _Waiting(frozenset(job_ids), asyncio.get_running_loop().create_future())
        self._waiting.add(waiting)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="gateway-cancellations")
        try:
            async with asyncio.timeout(seconds):
                return await waiting.found
        except TimeoutError:
            return set()
        finally:
            self._waiting.discard(waiting)

    async def close(self) -> None:
        """End the looks."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
        await self._broker.close()

    async def _look(self) -> None:
        """Look until nobody waits."""
        while self._waiting:
            try:
                ids = frozenset[str]().union(*(waiting.job_ids for waiting in self._waiting))
                cancelled = await self._broker.cancelled(ids)
            except BrokerUnreachable:
                cancelled = set()
            for waiting in self._waiting:
                found = waiting.job_ids & cancelled
                if found and not waiting.found.done():
                    waiting.found.set_result(set(found))
            await asyncio.sleep(LOOK_SECONDS)
