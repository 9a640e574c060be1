"""Cancellation of a run from another thread.

The token of the running node call is a part of the current work, so that code can check it without a parameter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace

from darkroom.engine.errors import Interrupted


class CancelToken:
    """Flag set once from any thread; a run checks it between nodes, sampling steps, and blocks of video networks."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    def cancel(self) -> None:
        with self._lock:
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    @property
    def is_cancelled(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        """Raise `Interrupted` once the run has been cancelled."""
        if self._event.is_set():
            raise Interrupted("the run was interrupted")

    def when_cancelled(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the token is set (from the thread that sets it), immediately if it already is."""
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)
                return
        callback()


@dataclass(frozen=True, eq=False)
class Work:
    """Work that the current code is a part of, for code that it reaches through calls with no parameter for it.

    `cancel` is None where nothing ends the work. A subclass holds what else sampling takes of its run
    (`engine/diffusion/sampling_run.py`).
    """

    cancel: CancelToken | None = None

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this the current work while the context is open, in its thread and in the tasks it starts."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)


_CURRENT: ContextVar[Work | None] = ContextVar("work", default=None)


def current_work() -> Work | None:
    """Return the current work, None outside of any."""
    return _CURRENT.get()


def not_cancelled() -> AbstractContextManager[None]:
    """Return the context in which `check_cancelled` does nothing: for work for other runs than the running node's."""
    work = _CURRENT.get()
    return nullcontext() if work is None else replace(work, cancel=None).current()


def current_check() -> Callable[[], None]:
    """Return the function that checks the running node call's token, for other threads that work for the call."""
    work = _CURRENT.get()
    return _never_cancelled if work is None or work.cancel is None else work.cancel.check


def _never_cancelled() -> None:
    """Do nothing: no run is to be cancelled."""


def check_cancelled() -> None:
    """Raise `Interrupted` once the run of the running node call has been cancelled. Outside of any, do nothing."""
    work = _CURRENT.get()
    if work is not None and work.cancel is not None:
        work.cancel.check()
