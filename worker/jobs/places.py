"""Semaphore with priorities: a limited number of jobs at a stage, admitted by `Job.order` instead of arrival.

`PlacesByName` has a separate semaphore for each name, so that a host that hangs blocks only the jobs that need it.
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


class Places:
    def __init__(self, num_places: int) -> None:
        self._num_places = self._num_free = num_places
        self._waiters: list[_Waiter] = []

    @asynccontextmanager
    async def place(self, order: tuple[int, int]) -> AsyncIterator[None]:
        """Hold one place, after all waiting jobs of lower `order` have theirs."""
        waiter = _Waiter(order, asyncio.get_running_loop().create_future())
        heapq.heappush(self._waiters, waiter)
        self._hand_out()
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled():
                self._give_back()
            waiter.turn.cancel()
            raise
        try:
            yield
        finally:
            self._give_back()

    @property
    def are_all_free(self) -> bool:
        return self._num_free == self._num_places

    def _give_back(self) -> None:
        self._num_free += 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiters and self._num_free:
            waiter = heapq.heappop(self._waiters)
            if not waiter.turn.done():
                self._num_free -= 1
                waiter.turn.set_result(None)


class PlacesByName:
    def __init__(self, num_places: int) -> None:
        self._num_places = num_places
        self._places: dict[str, Places] = {}

    @asynccontextmanager
    async def place(self, name: str, order: tuple[int, int]) -> AsyncIterator[None]:
        """Hold one of the places of `name`, in order of `order`."""
        places = self._places.setdefault(name, Places(self._num_places))
        try:
            async with places.place(order):
                yield
        finally:
            if places.are_all_free:  # then none waits either
                self._places.pop(name, None)
