"""The threads on which all torch work runs, in the order in which it was asked for.

Runs of prompts may be in progress at the same time, up to a number; they take turns (`turns.py`). Any other work, such
as measuring the device or unloading models, waits until they have ended, and keeps later runs waiting.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Work:
    call: Callable[[int], Any]
    future: Future[Any]
    is_run: bool


class RunThreads:
    """One inbox and as many threads as runs may be in progress. They start when they are first needed."""

    def __init__(self, max_runs: int = 1, name: str = "gpu") -> None:
        self._max_runs = max_runs
        self._name = name
        self._changed = threading.Condition()
        self._inbox: deque[_Work] = deque()
        self._threads: list[threading.Thread] = []
        self._idle: set[int] = set()  # numbers of the threads that wait
        self._num_running = 0
        self._is_exclusive = False  # what runs is no run of a prompt
        self._is_closed = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` by itself, after all that was submitted before. Raises RuntimeError once closed."""
        return self._submit(lambda place: work(), is_run=False)

    def submit_run(self, work: Callable[[int], T]) -> Future[T]:
        """Call `work` with the number of its thread, from 0, as soon as there is a place. RuntimeError once closed."""
        return self._submit(work, is_run=True)

    def _submit(self, call: Callable[[int], T], *, is_run: bool) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            if self._is_closed:
                raise RuntimeError("the engine is closed")
            self._inbox.append(_Work(call, future, is_run))
            if len(self._threads) < min(self._max_runs, self._num_running + len(self._inbox)):
                place = len(self._threads)
                thread = threading.Thread(
                    target=self._serve,
                    args=(place,),
                    name=f"{self._name}-{place}" if place else self._name,
                    daemon=True,
                )
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()
        return future

    def close(self) -> None:
        """Finish what was submitted, then end the threads. Does nothing the second time."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _serve(self, place: int) -> None:
        while (item := self._next(place)) is not None:
            if item.future.set_running_or_notify_cancel():
                try:
                    result = item.call(place)
                except BaseException as error:  # noqa: BLE001 - whoever waits for the work gets its error
                    item.future.set_exception(error)
                else:
                    item.future.set_result(result)
                    del result
            del item  # what the work held must not live until the next one comes
            with self._changed:
                self._num_running -= 1
                self._is_exclusive = False
                self._changed.notify_all()

    def _next(self, place: int) -> _Work | None:
        """Wait for work that may begin now, and take it; None once closed and empty."""
        with self._changed:
            self._idle.add(place)
            self._changed.wait_for(lambda: self._may_begin(place) or (self._is_closed and not self._inbox))
            self._idle.discard(place)
            self._changed.notify_all()
            if not self._inbox:
                return None
            item = self._inbox.popleft()
            self._num_running += 1
            self._is_exclusive = not item.is_run
            return item

    def _may_begin(self, place: int) -> bool:
        """Return True where this thread takes what comes next: the first idle one, whose caches are the fullest."""
        if not self._inbox or self._is_exclusive or place != min(self._idle):
            return False
        return self._inbox[0].is_run or not self._num_running
