"""Slots that a run keeps for the one that continues its prompt."""

from __future__ import annotations

import threading

from darkroom.engine.runtime.run_slots import RunSlots
from darkroom.engine.runtime.run_threads import RunThreads


def test_a_slot_is_that_of_its_last_prompt() -> None:
    slots = RunSlots(RunThreads(2))
    slots.enter(1, "a")
    assert slots.of("a") == 1 and slots.of(None) is None and slots.of("unknown") is None
    slots.enter(1, "b")
    assert slots.of("a") is None and slots.of("b") == 1
    assert slots.prompt_of(threading.get_ident()) == "b" and slots.prompt_of(None) is None


def test_a_held_slot_is_left_to_the_run_that_continues_there() -> None:
    threads = RunThreads(2)
    slots = RunSlots(threads)

    def run(slot: int) -> int:
        slots.enter(slot, "a")
        slots.hold("a")
        return slot

    held = threads.submit_run(run).result()
    other = threads.submit_run(lambda slot: slot).result()
    assert other != held
    assert threads.submit_run(lambda slot: slot, slots.of("a")).result() == held
    threads.submit_run(lambda slot: slots.hold("a"), held).result()
    slots.release("a")
    assert threads.submit_run(lambda slot: slot).result() == held, "the first idle one again"
    threads.close()
