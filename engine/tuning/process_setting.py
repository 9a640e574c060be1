"""Settings of the whole process that a strategy changes while runs use it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from darkroom.engine.tuning.strategy import Undo

T = TypeVar("T")


class ProcessSetting(Generic[T]):
    """One setting of the process: changed by the first use, and restored at the end of the last.

    `read` and `write` reach the setting, such as a flag of torch.
    """

    def __init__(self, read: Callable[[], T], write: Callable[[T], object]) -> None:
        self._read, self._write = read, write
        self._lock = threading.Lock()
        self._num_uses = 0
        self._before: list[T] = []

    def hold(self, value: T) -> Undo:
        """Set the value; return the function that ends this use. The value is the same in all uses at one time."""
        with self._lock:
            if not self._num_uses:
                self._before = [self._read()]
                self._write(value)
            self._num_uses += 1
        is_over = False

        def end() -> None:
            nonlocal is_over
            with self._lock:
                if is_over:
                    return
                is_over = True
                self._num_uses -= 1
                if not self._num_uses:
                    self._write(self._before.pop())

        return end
