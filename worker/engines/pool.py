"""EnginePool: the choice of the engine for the next prompt. At most one waiting prompt each behind those that run.

`relief.py` recalls a prompt that waits behind another where it would begin sooner elsewhere.

An engine serves when it is up and fit; the supervisor and the qualification set both. An unfit engine finishes the
prompts that it has and takes no others.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.client.lost import EngineLost
from darkroom.worker.engines.relief import Relief
from darkroom.worker.engines.slots import EngineSlot, Order
from darkroom.worker.errors import EngineAnswerInvalid, EngineUnreachable, NotReady, WorkerError

PROMPTS_PER_ENGINE = 2
GIVE_UP_SECONDS = 120.0
FOREIGN_WAIT_SECONDS = 1.0  # for an engine that is not ours
LOOK_SECONDS = 5.0
LOOK_DOWN_SECONDS = 0.05


@dataclass(order=True, slots=True)
class _Waiter:
    order: Order
    turn: asyncio.Future[EngineClient] = field(compare=False)
    only: EngineClient | None = field(compare=False, default=None)
    is_alone: bool = field(compare=False, default=False)
    needs_idle: bool = field(compare=False, default=False)  # `only` must have no prompt, not even one of this waiter


class EnginePool:
    """Pool of engines, handed out to the waiting job of the lowest order, the least busy engine first.

    Of `prompts_per_engine` one waits, the others run.
    A waiter gives up when no engine has been up for `give_up_seconds`; None: never, since a supervisor restarts them.
    """

    def __init__(
        self,
        clients: Sequence[EngineClient],
        prompts_per_engine: int = PROMPTS_PER_ENGINE,
        give_up_seconds: float | None = GIVE_UP_SECONDS,
    ) -> None:
        self._slots = [EngineSlot(client, runs_at_once=max(1, prompts_per_engine - 1)) for client in clients]
        self._prompts_per_engine = prompts_per_engine
        self._give_up_seconds = give_up_seconds
        self._waiters: list[_Waiter] = []
        self._is_paused = False
        self._relief = Relief(self._slots, self._assign_engines)

    @property
    def num_places(self) -> int:
        """Number of prompts that all engines take at once, the waiting ones among them."""
        return sum(slot.runs_at_once + 1 for slot in self._slots)

    @property
    def num_runs(self) -> int:
        """Number of prompts that all engines run at a time."""
        return sum(slot.runs_at_once for slot in self._slots)

    @property
    def clients(self) -> list[EngineClient]:
        return [slot.client for slot in self._slots]

    @property
    def clients_up(self) -> list[EngineClient]:
        return [slot.client for slot in self._slots if slot.is_up]

    @property
    def clients_free(self) -> list[EngineClient]:
        """Engines that are up and without a prompt that was asked to stop."""
        return [slot.client for slot in self._slots if slot.is_up and not slot.is_stopping]

    @property
    def clients_serving(self) -> list[EngineClient]:
        return [slot.client for slot in self._slots if slot.serves]

    @property
    def any_client(self) -> EngineClient:
        """Engine for requests that all engines answer alike: one that answers and serves, else one that is up."""
        return max(self._slots, key=lambda slot: (not slot.client.is_away, slot.serves, slot.is_up)).client

    async def any_up(self) -> EngineClient:
        """Return an engine that is up; wait for one. Raises EngineUnreachable when none has been up for long."""
        if not await self._wait_for_one(self._give_up_seconds, lambda slot: slot.is_up):
            raise EngineUnreachable("Cannot connect to the engine: none is up")
        return self.any_client

    async def any_up_within(self, seconds: float) -> EngineClient:
        """Return an engine that serves; wait as long as a caller may be kept waiting.

        Raises NotReady, or EngineUnreachable where nobody restarts the engines, for which it waits a moment only.
        """
        limit = seconds if self.restarts_engines else min(seconds, FOREIGN_WAIT_SECONDS)
        if not await self._wait_for_one(limit, lambda slot: slot.serves and not slot.client.is_away):
            raise self.no_engine()
        return self.any_client

    async def is_up_within(self, client: EngineClient, seconds: float) -> bool:
        """Wait until an engine is up and answers. Returns False when it did not within the time."""
        limit = seconds if self.restarts_engines else 0.0
        return await self._wait_for_one(limit, lambda slot: slot.client is client and slot.is_up and not client.is_away)

    async def any_known_within(self, seconds: float) -> EngineClient:
        """Return an engine whose nodes are known, at once: one that serves, or one of ours that is being restarted.

        Where there is none it waits and raises as `any_up_within` does.
        """
        client = self.any_client
        if self.restarts_engines and client.facts.is_remembered:
            return client
        return await self.any_up_within(seconds)

    @property
    def restarts_engines(self) -> bool:
        """True if the engines are ours: a supervisor restarts one that has gone."""
        return self._give_up_seconds is None

    def no_engine(self) -> WorkerError:
        """Return the error of a request that no engine can answer now."""
        if self.restarts_engines:
            return NotReady("The engine is restarting", retry_after_seconds=5)
        fault = next(filter(None, (client.calls.answer_fault for client in self.clients)), "")
        if fault:
            return EngineAnswerInvalid(fault)
        num_up, num_all = len(self.clients_up), len(self._slots)
        reason = f"{num_all} of ENGINE_URL asked, none answers" if not num_up else "those that answer are not fit"
        return EngineUnreachable(f"No engine: {reason}; this worker does not start them")

    @property
    def num_waiting(self) -> int:
        return sum(1 for waiter in self._waiters if not waiter.turn.done())

    @property
    def prompts_by_url(self) -> dict[str, int]:
        """Number of prompts of each engine."""
        return {slot.client.url: slot.num_taken for slot in self._slots}

    def set_up(self, client: EngineClient, is_up: bool) -> None:
        slot = self._slot_of(client)
        slot.is_up = is_up
        client.presence.mark_away(not is_up)
        if not slot.is_busy:
            slot.became_idle.set()
        self._wake_waiters()

    def set_fit(self, client: EngineClient, is_fit: bool) -> None:
        slot = self._slot_of(client)
        slot.is_fit = is_fit
        self._wake_waiters()

    def set_stopping(self, client: EngineClient, is_stopping: bool) -> None:
        """Set if a prompt that was asked to stop is still there: the engine then takes no other."""
        slot = self._slot_of(client)
        slot.is_stopping = is_stopping
        if not slot.is_busy:
            slot.became_idle.set()
        self._wake_waiters()

    def give_up(self) -> None:
        """Let waiters fail with EngineUnreachable: the engines have been ended for good."""
        self._give_up_seconds = 0.0

    def is_fit(self, client: EngineClient) -> bool:
        return self._slot_of(client).is_fit

    def is_held(self, client: EngineClient) -> bool:
        return self._slot_of(client).num_holds > 0

    def pause(self) -> None:
        """Stop handing engines out; those that are handed out stay so."""
        self._is_paused = True
        self._relief.stop()

    @contextlib.asynccontextmanager
    async def engine(
        self, order: Order, only: EngineClient | None = None, *, is_alone: bool = False
    ) -> AsyncIterator[EngineClient]:
        """Hold a slot of an engine (of `only` this one) after all waiters of lower `order` have theirs.

        `is_alone`: an engine without another prompt, which gets no other before the block is left.
        """
        async with self._turn(_Waiter(order, asyncio.get_running_loop().create_future(), only, is_alone)) as client:
            yield client

    @contextlib.asynccontextmanager
    async def kept_idle(self, client: EngineClient, order: Order) -> AsyncIterator[None]:
        """Keep an engine without any prompt, from its turn by `order` until the block is left.

        For a job that runs elsewhere on the engine's device. Engines other than this one go on meanwhile.
        """
        turn: asyncio.Future[EngineClient] = asyncio.get_running_loop().create_future()
        async with self._turn(_Waiter(order, turn, client, is_alone=True, needs_idle=True)):
            yield

    @contextlib.asynccontextmanager
    async def _turn(self, waiter: _Waiter) -> AsyncIterator[EngineClient]:
        """Hold a slot from a waiter's turn on."""
        heapq.heappush(self._waiters, waiter)
        self._wake_waiters()
        try:
            client = await self._await_turn(waiter)
        except (asyncio.CancelledError, EngineUnreachable):
            if waiter.turn.done() and not waiter.turn.cancelled():
                self._release(waiter.turn.result())
            waiter.turn.cancel()
            raise
        try:
            yield client
        finally:
            self._release(client)

    @property
    def idle_engines(self) -> list[EngineClient]:
        """Engines without a prompt, as long as no job waits for one."""
        if self._is_paused or any(not waiter.turn.done() for waiter in self._waiters):
            return []
        return [slot.client for slot in self._slots if slot.takes and not slot.num_taken and not slot.is_alone]

    def num_prompts_at(self, client: EngineClient) -> int:
        """Return the number of prompts that have a slot of an engine."""
        return self._slot_of(client).num_taken

    @contextlib.contextmanager
    def borrow(self, clients: Sequence[EngineClient], order: Order) -> Iterator[None]:
        """Hold a slot of each of some `idle_engines`, for parts of a job that has an engine already."""
        for client in clients:
            slot = self._slot_of(client)
            self._begins(slot, order)
            slot.num_taken += 1
            slot.last_order, slot.num_overtaken = order, 0
        try:
            yield
        finally:
            for client in clients:
                self._release(client)

    @contextlib.asynccontextmanager
    async def hold(self, client: EngineClient) -> AsyncIterator[None]:
        """Hold an engine exclusively, from the end of its prompts until the block is left.

        It may be down; a prompt that was asked to stop may be there still, and `clients_free` shows when it is gone.
        Other waiters go on waiting.
        """
        slot = self._slot_of(client)
        slot.num_holds += 1
        self._relief.begin()
        try:
            while slot.is_busy:
                slot.became_idle.clear()
                await slot.became_idle.wait()
            yield
        finally:
            slot.num_holds -= 1
            self._wake_waiters()

    async def _await_turn(self, waiter: _Waiter) -> EngineClient:
        """Wait for a waiter's turn. Raises EngineUnreachable when no engine (or not `only`) has been up for long."""
        clock = asyncio.get_running_loop().time
        down_since: float | None = None
        while True:
            done, _ = await asyncio.wait({waiter.turn}, timeout=LOOK_SECONDS)
            if done:
                return waiter.turn.result()
            if any(_may_take(slot, waiter) for slot in self._slots):
                down_since = None
                continue
            is_gone = waiter.only is not None and not waiter.needs_idle
            if is_gone and self._give_up_seconds is None:  # ours: with its process went its prompts
                raise EngineLost("The engine that had the prompt is gone")
            down_since = down_since or clock() - LOOK_SECONDS
            if self._give_up_seconds is not None and clock() - down_since >= self._give_up_seconds:
                waiter.turn.cancel()
                raise EngineUnreachable("Cannot connect to the engine: none is up")

    async def _wait_for_one(self, seconds: float | None, is_wanted: Callable[[EngineSlot], bool]) -> bool:
        clock = asyncio.get_running_loop().time
        began = clock()
        while not any(map(is_wanted, self._slots)):
            if seconds is not None and clock() - began >= seconds:
                return False
            await asyncio.sleep(LOOK_DOWN_SECONDS)
        return True

    def _release(self, client: EngineClient) -> None:
        slot = self._slot_of(client)
        slot.num_taken -= 1
        if not slot.num_taken:
            slot.is_alone = False
        if not slot.is_busy:
            slot.became_idle.set()
        elif slot.num_taken >= slot.runs_at_once and not slot.is_relieved:
            self._begins(slot, slot.last_order)
        self._wake_waiters()

    def _slot_of(self, client: EngineClient) -> EngineSlot:
        return next(slot for slot in self._slots if slot.client is client)

    def _begins(self, at: EngineSlot, order: Order) -> None:
        for slot in self._slots:
            if slot is not at and slot.num_taken > slot.runs_at_once and slot.last_order < order:
                slot.num_overtaken += 1

    def _wake_waiters(self) -> None:
        self._assign_engines()
        self._relief.begin()

    def _assign_engines(self) -> None:
        passed_over: list[_Waiter] = []
        reserved: list[EngineClient] = []  # for waiters that need them idle
        while self._waiters and not self._is_paused:
            free = [slot for slot in self._slots if self._has_room(slot) and slot.client not in reserved]
            if not free:
                break
            waiter = heapq.heappop(self._waiters)
            if waiter.turn.done():
                continue
            fitting = [slot for slot in free if _may_take(slot, waiter) and not _is_disturbed(slot, waiter)]
            if not fitting:
                passed_over.append(waiter)
                if waiter.needs_idle and waiter.only is not None:
                    reserved.append(waiter.only)
                if waiter.is_alone and waiter.only is None:  # else those behind it would keep every engine busy
                    break
                continue
            slot = min(fitting, key=lambda slot: (slot.num_taken, slot.is_relieved))
            would_wait = slot.num_taken >= slot.runs_at_once
            if would_wait and waiter.only is None and self._relief.is_reserved_against(waiter.order):
                passed_over.append(waiter)
                break
            if not would_wait:
                self._begins(slot, waiter.order)
            slot.num_taken += 1
            slot.is_alone = waiter.is_alone
            slot.last_order, slot.num_overtaken = waiter.order, 0
            self._relief.taken(waiter.order)
            waiter.turn.set_result(slot.client)
        for waiter in passed_over:
            heapq.heappush(self._waiters, waiter)

    def _has_room(self, slot: EngineSlot) -> bool:
        is_open = slot.is_up and not slot.num_holds and not slot.is_stopping and not slot.is_alone
        return is_open and slot.num_taken < self._prompts_per_engine


def _is_disturbed(slot: EngineSlot, waiter: _Waiter) -> bool:
    return (waiter.needs_idle or (waiter.is_alone and waiter.only is None)) and slot.num_prompts > 0


def _may_take(slot: EngineSlot, waiter: _Waiter) -> bool:
    """Return True if an engine may take a waiter's prompt; a waiter for one engine alone may use an unfit one."""
    return slot.serves if waiter.only is None else slot.is_up and slot.client is waiter.only
