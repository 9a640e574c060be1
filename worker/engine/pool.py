"""EnginePool: which engine takes the next prompt. At most one running and one waiting prompt each."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from worker.engine.client import EngineClient
from worker.errors import EngineUnreachable

PROMPTS_PER_ENGINE = 2
LOOK_SECONDS = 5.0
MAX_LOOKS_DOWN = 24
LOOK_DOWN_SECONDS = 0.1


Order = tuple[int, int]
"""Who goes first: the lower one."""


@dataclass(slots=True)
class _Slot:
    client: EngineClient
    is_up: bool = True
    num_taken: int = 0
    num_holds: int = 0
    became_idle: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(order=True, slots=True)
class _Waiter:
    order: Order
    turn: asyncio.Future[EngineClient] = field(compare=False)


class EnginePool:
    """Hands engines out, the least busy one first, to whoever of those that wait has the lowest order."""

    def __init__(self, clients: Sequence[EngineClient], prompts_per_engine: int = PROMPTS_PER_ENGINE) -> None:
        self._slots = [_Slot(client) for client in clients]
        self._prompts_per_engine = prompts_per_engine
        self._waiters: list[_Waiter] = []

    @property
    def clients(self) -> list[EngineClient]:
        return [slot.client for slot in self._slots]

    @property
    def any_client(self) -> EngineClient:
        """One to ask what is the same everywhere; an engine that is up if there is one."""
        return next((slot.client for slot in self._slots if slot.is_up), self._slots[0].client)

    async def any_up(self) -> EngineClient:
        """An engine that is up, waited for. Raises EngineUnreachable when none has been for long."""
        for _ in range(round(MAX_LOOKS_DOWN * LOOK_SECONDS / LOOK_DOWN_SECONDS)):
            if any(slot.is_up for slot in self._slots):
                return self.any_client
            await asyncio.sleep(LOOK_DOWN_SECONDS)
        raise EngineUnreachable("Cannot connect to the engine: none is up")

    @property
    def num_waiting(self) -> int:
        return sum(1 for waiter in self._waiters if not waiter.turn.done())

    @property
    def states(self) -> list[tuple[str, bool, int]]:
        """Each engine's address, whether it is up, and how many prompts it has."""
        return [(slot.client.url, slot.is_up, slot.num_taken) for slot in self._slots]

    def set_up(self, client: EngineClient, is_up: bool) -> None:
        for slot in self._slots:
            if slot.client is client:
                slot.is_up = is_up
        self._hand_out()

    @asynccontextmanager
    async def engine(self, order: Order) -> AsyncIterator[EngineClient]:
        """An engine with a free place, when all of lower `order` that wait have theirs."""
        waiter = _Waiter(order, asyncio.get_running_loop().create_future())
        heapq.heappush(self._waiters, waiter)
        self._hand_out()
        try:
            client = await self._await_turn(waiter)
        except (asyncio.CancelledError, EngineUnreachable):
            if waiter.turn.done() and not waiter.turn.cancelled():
                self._give_back(waiter.turn.result())
            waiter.turn.cancel()
            raise
        try:
            yield client
        finally:
            self._give_back(client)

    @asynccontextmanager
    async def hold(self, client: EngineClient) -> AsyncIterator[None]:
        """This engine for oneself: entered when its prompts have ended, nobody gets it before the block is left.

        It may be down. Those who wait for an engine go on waiting.
        """
        slot = next(slot for slot in self._slots if slot.client is client)
        slot.num_holds += 1
        try:
            while slot.num_taken:
                slot.became_idle.clear()
                await slot.became_idle.wait()
            yield
        finally:
            slot.num_holds -= 1
            self._hand_out()

    async def _await_turn(self, waiter: _Waiter) -> EngineClient:
        """Raises EngineUnreachable when no engine has been up for long."""
        looks_down = 0
        while looks_down < MAX_LOOKS_DOWN:
            done, _ = await asyncio.wait({waiter.turn}, timeout=LOOK_SECONDS)
            if done:
                return waiter.turn.result()
            looks_down = 0 if any(slot.is_up for slot in self._slots) else looks_down + 1
        waiter.turn.cancel()
        raise EngineUnreachable("Cannot connect to the engine: none is up")

    def _give_back(self, client: EngineClient) -> None:
        for slot in self._slots:
            if slot.client is client:
                slot.num_taken -= 1
                if not slot.num_taken:
                    slot.became_idle.set()
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiters:
            if self._waiters[0].turn.done():
                heapq.heappop(self._waiters)
                continue
            places = self._prompts_per_engine
            free = [slot for slot in self._slots if slot.is_up and not slot.num_holds and slot.num_taken < places]
            if not free:
                return
            slot = min(free, key=lambda slot: slot.num_taken)
            slot.num_taken += 1
            heapq.heappop(self._waiters).turn.set_result(slot.client)
