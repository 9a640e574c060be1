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
    place: int | None = None  # the only thread that may take it


class RunThreads:
    """One inbox and as many threads as runs may be in progress. They start when they are first needed."""

    def __init__(self, max_runs: int = 1, name: str = "gpu") -> None:
        self._max_runs = max_runs
        self._name = name
        self._changed = threading.Condition()
        self._inbox: deque[_Work] = deque()
        self._threads: list[threading.Thread] = []
        self._idle: set[int] = set()  # numbers of the threads that wait
        self._reserved: set[int] = set()  # and of those among them that wait for one run alone
        self._num_running = 0
        self._is_exclusive = False  # what runs is no run of a prompt
        self._is_closed = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` by itself, after all that was submitted before. Raises RuntimeError once closed."""
        return self._submit(lambda place: work(), is_run=False)

    def submit_run(self, work: Callable[[int], T], place: int | None = None) -> Future[T]:
        """Call `work` with the number of its thread, from 0, as soon as there is a place. RuntimeError once closed.

        `place` is the number of a thread that has run before, where no other one will do.
        """
        return self._submit(work, is_run=True, place=place)

    def _submit(self, call: Callable[[int], T], *, is_run: bool, place: int | None = None) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            if self._is_closed:
                raise RuntimeError("the engine is closed")
            self._inbox.append(_Work(call, future, is_run, place))
            if len(self._threads) < min(self._max_runs, self._num_running + len(self._reserved) + len(self._inbox)):
                number = len(self._threads)
                thread = threading.Thread(
                    target=self._serve,
                    args=(number,),
                    name=f"{self._name}-{number}" if number else self._name,
                    daemon=True,
                )
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()
        return future

    def reserve(self, place: int) -> None:
        """Keep a thread for the next run that asks for it, as long as there are others or may be."""
        with self._changed:
            self._reserved.add(place)

    def release(self, place: int) -> None:
        """End a reservation whose run does not come."""
        with self._changed:
            self._reserved.discard(place)
            self._changed.notify_all()

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
            self._reserved.discard(place)
            self._num_running += 1
            self._is_exclusive = not item.is_run
            return item

    def _may_begin(self, place: int) -> bool:
        """Return True where this thread takes what comes next: the first idle one, whose caches are the fullest."""
        if not self._inbox or self._is_exclusive:
            return False
        if place != self._next_place():
            return False
        return self._inbox[0].is_run or not self._num_running

    def _next_place(self) -> int | None:
        """Return the thread that takes what comes next, None while it is busy."""
        wanted = self._inbox[0].place
        if wanted is not None:
            return wanted
        is_only_reserved = not self._num_running and len(self._reserved) >= self._max_runs
        return min(self._idle if is_only_reserved else self._idle - self._reserved, default=None)
