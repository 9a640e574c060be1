"""Relief: recalls prompts that wait behind another at their engine, where they would begin sooner elsewhere.

A prompt is recalled when an engine is idle, when its own engine is to be left out, or when younger ones have overtaken
it several times. The next slot is then reserved for the overtaken one, and a younger one waits instead.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from darkroom.worker.concurrency.background_tasks import BackgroundTasks
from darkroom.worker.engines.slots import EngineSlot, Order

log = structlog.get_logger("engines")

RELIEVE_AGAIN_SECONDS = 0.5
KEEP_PLACE_SECONDS = 2.0  # for a prompt that is being taken back for it
MAX_OVERTAKEN = 2  # the first time the other engine may only have been a little sooner


@dataclass(slots=True)
class _ReservedSlot:
    """Next slot behind another prompt, reserved for one that is being recalled."""

    order: Order
    is_taken: asyncio.Event = field(default_factory=asyncio.Event)


class Relief:
    """Owner of the recalls under way and of the reserved slot. `assign_engines` gives free slots to waiting jobs."""

    def __init__(self, slots: Sequence[EngineSlot], assign_engines: Callable[[], None]) -> None:
        self._slots = slots
        self._assign_engines = assign_engines
        self._recalls = BackgroundTasks(_report_failure)
        self._reserved: _ReservedSlot | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """Start no more recalls of prompts that would begin sooner elsewhere."""
        self._is_stopped = True

    def taken(self, order: Order) -> None:
        """Note that the prompt of this order has a slot: a reservation for it ends."""
        if self._reserved is not None and order == self._reserved.order:
            self._reserved.is_taken.set()
            self._reserved = None

    def is_reserved_against(self, order: Order) -> bool:
        """Return True if the next slot is reserved for an older prompt that is being recalled from another engine."""
        if self._reserved is None:
            overtaken = _overtaken(self._slots, order)
            if overtaken is None:
                return False
            self._reserved = _ReservedSlot(overtaken.last_order)
            self._begin_relief(overtaken, self._reserved)
        return order > self._reserved.order

    def begin(self) -> None:
        """Start to recall the prompts that would begin sooner elsewhere."""
        for slot in () if self._is_stopped else _slots_to_relieve(self._slots):
            self._begin_relief(slot)

    def _begin_relief(self, slot: EngineSlot, kept: _ReservedSlot | None = None) -> None:
        """Start to recall the prompts waiting at an engine; each comes back here as its job's turn for an engine."""
        slot.is_relieved = True
        self._recalls.spawn(self._recall(slot, kept), name=f"recall-{slot.client.url}")

    async def _recall(self, slot: EngineSlot, kept: _ReservedSlot | None) -> None:
        """Recall the waiting prompts of an engine; after a pause, relieve again.

        Prompts on their way, or of an engine that does not reply, are recalled then.
        """
        try:
            await slot.client.runner.recall_waiting()
            if kept is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(KEEP_PLACE_SECONDS):
                        await kept.is_taken.wait()
        finally:
            slot.is_relieved, slot.num_overtaken = False, 0
            if self._reserved is kept:
                self._reserved = None
        self._assign_engines()
        await asyncio.sleep(RELIEVE_AGAIN_SECONDS)
        self.begin()


def _report_failure(task: asyncio.Task[None], error: BaseException) -> None:
    log.error("recall failed", task=task.get_name(), exc_info=error)


def _slots_to_relieve(slots: Sequence[EngineSlot]) -> list[EngineSlot]:
    """Return the engines whose waiting prompts would begin sooner elsewhere. Pure.

    They are all engines that are left out while others serve, else, where another engine is idle, the one whose prompt
    comes first.
    """
    crowded = [slot for slot in slots if slot.is_up and slot.has_waiting and not slot.is_relieved]
    taking = [slot for slot in slots if slot.takes]
    left_out = [slot for slot in crowded if not slot.serves or slot.num_holds] if taking else []
    is_any_idle = any(slot.num_taken < slot.runs_at_once for slot in taking)
    is_on_its_way = any(slot.is_relieved for slot in slots)
    if left_out or not is_any_idle or is_on_its_way or not crowded:
        return left_out
    return [min(crowded, key=lambda slot: slot.last_order)]


def _overtaken(slots: Sequence[EngineSlot], order: Order) -> EngineSlot | None:
    """Return the engine whose waiting prompt is the oldest that younger ones have overtaken too often. Pure."""
    crowded = [slot for slot in slots if slot.is_up and slot.has_waiting and not slot.is_relieved]
    overtaken = [slot for slot in crowded if slot.num_overtaken >= MAX_OVERTAKEN and slot.last_order < order]
    return min(overtaken, key=lambda slot: slot.last_order, default=None)
