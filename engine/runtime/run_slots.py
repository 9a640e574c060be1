"""Slots that a run keeps for the one that continues its prompt."""

from __future__ import annotations

import threading

from darkroom.engine.runtime.run_threads import RunThreads


class RunSlots:
    """The last prompt of each thread for runs, by which a later run finds the slot that it is to continue in."""

    def __init__(self, threads: RunThreads) -> None:
        self._threads = threads
        self._slot_of: dict[str, int] = {}  # by prompt
        self._prompt_of_thread: dict[int, str] = {}  # by the thread's identifier

    def enter(self, slot: int, prompt_id: str) -> None:
        """Record that the calling thread, which has this slot, runs a prompt."""
        self._prompt_of_thread[threading.get_ident()] = prompt_id
        self._slot_of = {id_: at for id_, at in self._slot_of.items() if at != slot} | {prompt_id: slot}

    def of(self, prompt_id: str | None) -> int | None:
        """Return the slot whose last prompt this is, None for no prompt or one that is gone."""
        return self._slot_of.get(prompt_id) if prompt_id else None

    def prompt_of(self, thread: int | None) -> str | None:
        """Return the last prompt of a thread, by its identifier."""
        return None if thread is None else self._prompt_of_thread.get(thread)

    def hold(self, prompt_id: str) -> None:
        """Keep the slot of a prompt for the run that continues it."""
        slot = self._slot_of.get(prompt_id)
        if slot is not None:
            self._threads.reserve(slot)

    def release(self, prompt_id: str) -> None:
        """Give up the slot that is kept for the run which was to continue this prompt's."""
        slot = self._slot_of.get(prompt_id)
        if slot is not None:
            self._threads.release(slot)
