"""CallerQuota: limits per caller on waiting jobs and on stored bytes of results.

A caller's name comes from `worker/guard/rate_limits.py` and is stored with its jobs. The empty name has no limits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from worker.errors import LimitReached
from worker.jobs.database import JOBS
from worker.jobs.job import Job, Stage
from worker.jobs.store import JobStore
from worker.settings.jobs import CallerLimits

BEGUN = frozenset({Stage.RUNNING, Stage.DELIVERING, Stage.DONE})
MAX_RETRY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Stored:
    caller: str
    size_bytes: int
    finished_ms: int


class CallerQuota:
    """Usage and limits of each caller.

    `jobs` returns all jobs that have not ended. `seconds_per_job` returns the mean of the last runs (0: unknown).
    """

    def __init__(
        self,
        config: CallerLimits,
        jobs: Callable[[], Iterable[Job]],
        seconds_per_job: Callable[[], float],
        result_ttl_seconds: float,
    ) -> None:
        self._config = config
        self._jobs = jobs
        self._seconds_per_job = seconds_per_job
        self._result_ttl_seconds = result_ttl_seconds
        self._arriving: dict[str, str] = {}  # ids of jobs that are being admitted -> their callers
        self._stored: dict[str, _Stored] = {}  # by job
        self._stored_bytes: dict[str, int] = {}  # by caller

    def reserve(self, caller: str, job_id: str) -> None:
        """Count a job during its admission, until `release` is called. Raises LimitReached."""
        if not caller:
            return
        self._check_waiting(caller)
        self._check_stored(caller)
        self._arriving[job_id] = caller

    def release(self, job_id: str) -> None:
        """End the reservation of a job that was admitted, and counts as waiting, or was refused."""
        self._arriving.pop(job_id, None)

    def job_ended(self, job: Job) -> None:
        """Add the bytes of an ended job's outputs to its caller's usage."""
        if self._config.stored_bytes is not None and job.request.caller and job.outputs:
            self._add(job.id, _Stored(job.request.caller, _bytes_of(job.outputs), job.times.completed_at_ms or 0))

    def files_removed(self, job_id: str) -> None:
        """Subtract the files of a job that were removed from the disk."""
        gone = self._stored.pop(job_id, None)
        if gone is not None:
            left = self._stored_bytes[gone.caller] - gone.size_bytes
            self._stored_bytes[gone.caller] = left
            if left <= 0:
                del self._stored_bytes[gone.caller]

    async def load(self, store: JobStore) -> None:
        """Count the stored bytes of jobs from earlier starts."""
        if self._config.stored_bytes is None:
            return
        query = sa.select(JOBS.c.id, JOBS.c.request, JOBS.c.outputs, JOBS.c.finished_ms).where(
            JOBS.c.finished_ms.is_not(None), JOBS.c.outputs != "[]"
        )
        for row in await store.read(query):
            caller = str(json.loads(row.request).get("caller") or "")
            if caller and store.job_directory(row.id).is_dir():
                self._add(row.id, _Stored(caller, _bytes_of(json.loads(row.outputs)), row.finished_ms))

    def _add(self, job_id: str, stored: _Stored) -> None:
        self.files_removed(job_id)
        self._stored[job_id] = stored
        self._stored_bytes[stored.caller] = self._stored_bytes.get(stored.caller, 0) + stored.size_bytes

    def _check_waiting(self, caller: str) -> None:
        allowed = self._config.jobs_waiting
        if allowed is None:
            return
        waiting = {job.id for job in self._jobs() if job.request.caller == caller and job.stage not in BEGUN}
        waiting |= {job_id for job_id, owner in self._arriving.items() if owner == caller}
        if len(waiting) >= allowed:
            wait = min(MAX_RETRY_SECONDS, max(1.0, self._seconds_per_job() or 5.0))
            raise LimitReached("jobs_waiting", len(waiting) + 1, allowed, retry_after_seconds=wait)

    def _check_stored(self, caller: str) -> None:
        allowed, stored = self._config.stored_bytes, self._stored_bytes.get(caller, 0)
        if allowed is not None and stored >= allowed:
            oldest_ms = min(item.finished_ms for item in self._stored.values() if item.caller == caller)
            wait = oldest_ms / 1000 + self._result_ttl_seconds - time.time()
            raise LimitReached("stored_bytes", stored, allowed, retry_after_seconds=max(MAX_RETRY_SECONDS, wait))


def _bytes_of(outputs: Iterable[object]) -> int:
    """Return the sum of the sizes in output records."""
    sizes = (record.get("size_bytes") for record in outputs if isinstance(record, dict))
    return sum(size for size in sizes if isinstance(size, int))
