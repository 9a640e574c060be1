"""Ends of runs, which wait for files while the next run computes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from darkroom.engine.runtime.request import RunResult

NUM_WRITERS = 2


class RunEnds:
    """The threads that write files and set results: one of the latter, so that runs end in their order."""

    def __init__(self) -> None:
        self.writers = ThreadPoolExecutor(NUM_WRITERS, thread_name_prefix="writer")
        self._finisher = ThreadPoolExecutor(1, thread_name_prefix="finisher")
        self._last: Future[None] | None = None

    def settle(self, result: Future[RunResult], end: Callable[[], RunResult]) -> None:
        """Set on `result` what `end` returns or raises, after the runs that were settled before."""
        self._last = self._finisher.submit(_settle, result, end)

    def wait(self) -> None:
        """Wait until the previous run has written its last file. Writers never wait for the GPU thread."""
        if self._last is not None:
            self._last.result()

    def close(self) -> None:
        self._finisher.shutdown()
        self.writers.shutdown()


def _settle(result: Future[RunResult], end: Callable[[], RunResult]) -> None:
    try:
        result.set_result(end())
    except BaseException as error:  # noqa: BLE001 - the end of a run
        result.set_exception(error)
