"""The runs that were submitted and are not over."""

from __future__ import annotations

import itertools
import threading

from darkroom.engine.cancel import CancelToken


class RunRegister:
    """Runs by their number, with what cancels each. Callable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[int, tuple[str, CancelToken]] = {}  # in their order
        self._numbers = itertools.count()
        self._running: list[int] = []

    def add(self, prompt_id: str) -> tuple[int, CancelToken]:
        """Add a submitted run; return its number and its token."""
        number, cancel = next(self._numbers), CancelToken()
        with self._lock:
            self._runs[number] = (prompt_id, cancel)
        return number, cancel

    def begin(self, number: int) -> None:
        with self._lock:
            self._running.append(number)

    def remove(self, number: int) -> None:
        """Remove a run that is over, or could not be submitted."""
        with self._lock:
            if number in self._running:
                self._running.remove(number)
            del self._runs[number]

    def interrupt(self, prompt_id: str | None) -> bool:
        """Cancel the running prompts, or the one with that id. Return True if there was one."""
        with self._lock:
            running = [self._runs[number] for number in self._running]
        asked = [cancel for own_id, cancel in running if prompt_id in (None, own_id)]
        for cancel in asked:
            cancel.cancel()
        return bool(asked)

    def cancel_all(self) -> None:
        """Cancel every run, those that wait too."""
        with self._lock:
            tokens = [cancel for _, cancel in self._runs.values()]
        for token in tokens:
            token.cancel()

    @property
    def is_empty(self) -> bool:
        return not self._runs
