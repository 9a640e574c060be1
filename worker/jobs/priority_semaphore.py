"""Semaphore with priorities: a limited number of jobs at a stage, admitted by `Job.order` instead of arrival.

`PrioritySemaphores` has one semaphore for each name, so that a host that hangs blocks only the jobs that need it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(order=True, slots=True)
class _Waiter:
    order: tuple[int, int]
    turn: asyncio.Future[None] = field(compare=False)


class PrioritySemaphore:
    def __init__(self, num_slots: int) -> None:
        self._num_slots = self._num_free = num_slots
        self._waiters: list[_Waiter] = []

    @asynccontextmanager
    async def acquire(self, order: tuple[int, int]) -> AsyncIterator[None]:
        """Hold one slot, after all waiting jobs of lower `order` have theirs."""
        waiter = _Waiter(order, asyncio.get_running_loop().create_future())
        heapq.heappush(self._waiters, waiter)
        self._wake_waiters()
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled():
                self._release()
            waiter.turn.cancel()
            raise
        try:
            yield
        finally:
            self._release()

    @property
    def are_all_free(self) -> bool:
        return self._num_free == self._num_slots

    def _release(self) -> None:
        self._num_free += 1
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        while self._waiters and self._num_free:
            waiter = heapq.heappop(self._waiters)
            if not waiter.turn.done():
                self._num_free -= 1
                waiter.turn.set_result(None)


class PrioritySemaphores:
    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._semaphores: dict[str, PrioritySemaphore] = {}

    @asynccontextmanager
    async def acquire(self, name: str, order: tuple[int, int]) -> AsyncIterator[None]:
        """Hold one of the slots of `name`, in order of `order`."""
        semaphore = self._semaphores.setdefault(name, PrioritySemaphore(self._num_slots))
        try:
            async with semaphore.acquire(order):
                yield
        finally:
            if semaphore.are_all_free:  # then none waits either
                self._semaphores.pop(name, None)
