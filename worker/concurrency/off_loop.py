"""Work on callers' documents in threads, so that the event loop stays responsive; the threads end in bounded time.

A thread that works on a document ends at a limit of processor time and when its caller no longer waits: an exception is
raised in it. So what runs here must hold no lock and change nothing that outlives it. A few threads share the work: in
Python more would only take time from the event loop. They are separate from those of `asyncio.to_thread`, which writes
files, so large documents of some callers do not delay the files of others.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Final, Generic, ParamSpec, TypeVar

from darkroom.worker.errors import Problem, RequestRejected

LARGE_ELEMENTS: Final = 2000  # a thread costs less than examining so many values
LARGE_TEXT_LENGTH: Final = 64 * 1024
MAX_WORK_SECONDS: Final = 20.0
"""Processor seconds of one call. The largest document that the default limits allow takes a quarter of them."""

PLAIN: Final = frozenset({int, float, bool, type(None)})
NUM_THREADS: Final = 2
CHECK_SECONDS: Final = 0.2
STOP_AGAIN_SECONDS: Final = 2.0  # longer than a thread needs to leave what it does

Answer = TypeVar("Answer")
Given = ParamSpec("Given")


async def off_loop(
    is_large: bool, function: Callable[Given, Answer], *arguments: Given.args, **named: Given.kwargs
) -> Answer:
    """Call a pure function, in a thread when `is_large`; a thread for little work would cost more than the work.

    Raises RequestRejected if a thread takes more than MAX_WORK_SECONDS.
    """
    if not is_large:
        return function(*arguments, **named)
    return await run_bounded(lambda: function(*arguments, **named))


def needs_thread(*documents: object) -> bool:
    """Return True for JSON values that are better examined in a thread; looks at a bounded part of them."""
    num_elements, length = len(documents), 0
    waiting: list[Any] = list(documents)
    while waiting:
        item = waiting.pop()
        kind = type(item)
        if kind is str:
            length += len(item)
        elif kind is dict or kind is list or (kind not in PLAIN and isinstance(item, Mapping | tuple)):
            num_elements += len(item)
            if num_elements > LARGE_ELEMENTS or length > LARGE_TEXT_LENGTH:
                return True
            if kind is list or kind is tuple:
                waiting += item
            else:
                length += sum(map(len, item))
                waiting += item.values()
    return length > LARGE_TEXT_LENGTH


async def run_bounded(function: Callable[[], Answer], max_seconds: float = MAX_WORK_SECONDS) -> Answer:
    """Run a pure function in a thread, which ends at `max_seconds` of processor time and with the awaiting task.

    Raises RequestRejected at the limit.
    """
    work = _Work(function)
    ended = asyncio.get_running_loop().run_in_executor(_threads(), work.run)
    try:
        while True:
            await asyncio.wait([ended], timeout=CHECK_SECONDS)
            if ended.done():
                return work.outcome()
            if work.used_seconds() > max_seconds:
                raise _takes_too_long(max_seconds)
    finally:
        _end(work)
        ended.cancel()


def _end(work: _Work[Any]) -> None:
    """Stop a call, again while it runs: an exception that arrives in a finaliser, as of a generator, is lost."""
    if work.stop():
        asyncio.get_running_loop().call_later(STOP_AGAIN_SECONDS, _end, work)


@cache
def _threads() -> ThreadPoolExecutor:
    """Return the threads of this process; made at first use."""
    return ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="documents")


class _Stopped(BaseException):
    """Raised in a thread whose work nobody waits for."""


class _Work(Generic[Answer]):
    """One call on its way through a thread, and its outcome."""

    def __init__(self, function: Callable[[], Answer]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._thread_id: int | None = None  # while the function runs
        self._is_stopped = False
        self._began_seconds = 0.0
        self._results: list[Answer] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        """Run the function in this thread and keep its outcome."""
        try:
            try:
                with self._lock:
                    if self._is_stopped:
                        return
                    self._began_seconds = time.thread_time() if _has_thread_clocks() else time.monotonic()
                    self._thread_id = threading.get_ident()
                self._results.append(self._function())
            finally:
                with self._lock:
                    self._thread_id = None  # from here on `stop` raises nothing
                for _ in range(2):  # what it has raised arrives at the latest here, at the jump of the loop
                    pass
        except _Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - the thread: the awaiting task gets it
            self._error = error

    def outcome(self) -> Answer:
        """Return the function's result, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._results[0]

    def used_seconds(self) -> float:
        """Return the processor time of the call so far; 0 while it waits for a thread."""
        with self._lock:
            if self._thread_id is None:
                return 0.0
            if not _has_thread_clocks():
                return time.monotonic() - self._began_seconds
            return time.clock_gettime(time.pthread_getcpuclockid(self._thread_id)) - self._began_seconds

    def stop(self) -> bool:
        """End the call if it has not ended. Returns True if it still runs."""
        with self._lock:
            self._is_stopped = True
            if self._thread_id is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread_id), ctypes.py_object(_Stopped))
            return self._thread_id is not None


def _has_thread_clocks() -> bool:
    """Return False where a thread's processor time cannot be read from another one, as on macOS."""
    return hasattr(time, "pthread_getcpuclockid")


def _takes_too_long(max_seconds: float) -> RequestRejected:
    message = f"takes too much processor time to examine; got {max_seconds:g} s or more, expected less"
    problem = Problem(
        message, field="input.workflow_json", type="takes_too_long", allowed={"maximum_seconds": max_seconds}
    )
    return RequestRejected([problem])
