"""RunPodAutoscaler: keeps the process of `loop.py` running while the worker can accept jobs, and only then.

The loop gets no message but the signal to stop. When it ends by itself the worker ends too: RunPod's package exits to
have the machine replaced, or because one of its fitness checks failed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from darkroom.start import command_of
from darkroom.worker.autoscaler.autoscaler import Caller, checked_speed
from darkroom.worker.errors import WorkerError
from darkroom.worker.storage.job import JobState

MODULE: Final = "darkroom.worker.integrations.runpod.loop"
LAST_RESULTS_SECONDS: Final = 10.0

log = structlog.get_logger("runpod")


class RunPodAutoscaler:
    """Autoscaler for RunPod. `on_end` is called with the loop's exit code when it ends without a request to."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        on_end: Callable[[int], None],
    ) -> None:
        self._arguments = tuple(arguments)
        self._environment = dict(environment)
        self._on_end = on_end
        self._is_wanted = asyncio.Event()
        self._is_draining = False
        self._is_asked_to_stop = False
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._keeping = asyncio.create_task(self._keep(), name="runpod-loop")

    async def close(self) -> None:
        """Stop the loop, with some seconds to return its last results: all jobs have ended by now.

        Otherwise it would go on for the length of its long poll.
        """
        self.draining()
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), LAST_RESULTS_SECONDS)
            except TimeoutError:
                self._process.kill()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)

    def loaded(self, speed: float) -> None:
        checked_speed(speed)
        if not self._is_draining:
            self._is_wanted.set()

    def error_set(self, message: str) -> None:
        self._stop_taking()

    def error_cleared(self) -> None:
        """Do nothing: `loaded` follows when jobs are accepted again."""

    def draining(self) -> None:
        self._is_draining = True
        self._stop_taking()

    def job_accepted(self, job_id: str, cost: float, caller: Caller | None) -> None: ...

    def job_started(self, job_id: str) -> None: ...

    def job_ended(self, job_id: str, state: JobState) -> None: ...

    def request_refused(self, cost: float, caller: Caller | None, error: WorkerError) -> None: ...

    def _stop_taking(self) -> None:
        self._is_wanted.clear()
        if self._process is not None and self._process.returncode is None:
            self._is_asked_to_stop = True
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    async def _keep(self) -> None:
        while True:
            await self._is_wanted.wait()
            command = [*command_of(MODULE), *self._arguments]
            self._is_asked_to_stop = False
            self._process = await asyncio.create_subprocess_exec(*command, env=self._environment)
            log.info("RunPod loop started", pid=self._process.pid)
            if not self._is_wanted.is_set():  # the worker has closed in the meantime
                self._stop_taking()
            code = await self._process.wait()
            if not self._is_asked_to_stop:
                log.error("RunPod loop ended", exit_code=code)
                self._on_end(code)
                return
