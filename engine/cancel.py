"""Cancellation of a run from another thread.

The token of the running node call is current in the call's own code, so that sampling can check it without a parameter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from engine.errors import Interrupted


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

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this the token that `check_cancelled` checks while the context is open."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)


_CURRENT: ContextVar[CancelToken | None] = ContextVar("cancel_token", default=None)


@contextmanager
def not_cancelled() -> Iterator[None]:
    """Let `check_cancelled` do nothing while the context is open: in work for other runs than the running node's."""
    token = _CURRENT.set(None)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_check() -> Callable[[], None]:
    """Return the function that checks the running node call's token, for other threads that work for the call."""
    token = _CURRENT.get()
    return _never_cancelled if token is None else token.check


def _never_cancelled() -> None:
    """Do nothing: no run is to be cancelled."""


def check_cancelled() -> None:
    """Raise `Interrupted` once the run of the running node call has been cancelled. Outside of any, do nothing."""
    token = _CURRENT.get()
    if token is not None:
        token.check()
