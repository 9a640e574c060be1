"""Timer of the time in which nothing has run."""

from __future__ import annotations

import threading
from collections.abc import Callable


class IdleTimer:
    """Calls `action`, on a thread of its own, so long after the last `start` unless `stop` came before. 0 s: never."""

    def __init__(self, seconds: float, action: Callable[[], None]) -> None:
        self._seconds = seconds
        self._action = action
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        if self._seconds <= 0:
            return
        with self._lock:
            self._cancel()
            self._timer = threading.Timer(self._seconds, self._action)
            self._timer.daemon = True
            self._timer.start()

    def stop(self) -> None:
        if self._seconds <= 0:
            return
        with self._lock:
            self._cancel()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
