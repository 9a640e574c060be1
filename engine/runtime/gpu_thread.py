"""The one thread on which all torch work runs, in the order in which it was asked for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_Work = tuple[Callable[[], Any], "Future[Any]"]


class GpuThread:
    """One thread, one inbox. It starts with the first piece of work and ends with `close`."""

    def __init__(self, name: str = "gpu") -> None:
        self._inbox: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._name = name

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` after all that was submitted before. Raises RuntimeError once closed."""
        future: Future[T] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the engine is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._inbox.put((work, future))
        return future

    def close(self) -> None:
        """Finish what was submitted, then end the thread. Does nothing the second time."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            thread = self._thread
        if thread is not None:
            self._inbox.put(None)
            if thread is not threading.current_thread():
                thread.join()

    def _run(self) -> None:
        while (item := self._inbox.get()) is not None:
            work, future = item
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as error:  # noqa: BLE001 - the thread: whoever waits for the work gets its error
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del item, work, future  # what the work held must not live until the next one comes
