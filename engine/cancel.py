"""The way to stop a run from another thread."""

from __future__ import annotations

import threading

from engine.errors import Interrupted


class CancelToken:
    """Set once from any thread; a run asks it between nodes and between sampling steps."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        self._event.set()

    @property
    def is_cancelled(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        """Raise `Interrupted` once the run has been cancelled."""
        if self._event.is_set():
            raise Interrupted("the run was interrupted")
