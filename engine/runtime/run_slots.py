"""Slots that a run keeps for the one that continues its prompt."""

from __future__ import annotations

import threading

from darkroom.engine.runtime.run_threads import RunThreads


class RunSlots:
    """The last prompt of each thread for runs, by which a later run finds the slot that it is to continue in."""

    def __init__(self, threads: RunThreads) -> None:
        self._threads = threads
        self._prompt_of_slot: dict[int, str] = {}  # one assignment an entry: threads of several slots enter at once
        self._prompt_of_thread: dict[int, str] = {}  # by the thread's identifier

    def enter(self, slot: int, prompt_id: str) -> None:
        """Record that the calling thread, which has this slot, runs a prompt."""
        self._prompt_of_thread[threading.get_ident()] = prompt_id
        self._prompt_of_slot[slot] = prompt_id

    def of(self, prompt_id: str | None) -> int | None:
        """Return the slot whose last prompt this is, None for no prompt or one that is gone."""
        last = list(self._prompt_of_slot.items())
        return next((slot for slot, last_id in last if last_id == prompt_id), None) if prompt_id else None

    def prompt_of(self, thread: int | None) -> str | None:
        """Return the last prompt of a thread, by its identifier."""
        return None if thread is None else self._prompt_of_thread.get(thread)

    def hold(self, prompt_id: str) -> None:
        """Keep the slot of a prompt for the run that continues it."""
        slot = self.of(prompt_id)
        if slot is not None:
            self._threads.reserve(slot)

    def release(self, prompt_id: str) -> None:
        """Give up the slot that is kept for the run which was to continue this prompt's."""
        slot = self.of(prompt_id)
        if slot is not None:
            self._threads.release(slot)
