"""CallerQuota: limits per caller on waiting jobs and on all bytes that are stored for it.

Stored are the outputs of its jobs, the files that its jobs wait with or run on, their checkpoints, what the record of a
job has above RECORD_BYTES, and its assets. A caller's name comes from `worker/guard/rate_limits.py` and is stored with
its jobs. The empty name has no limits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from darkroom.worker.errors import LimitReached
from darkroom.worker.settings.jobs import CallerLimits
from darkroom.worker.storage.database import JOBS
from darkroom.worker.storage.job import Job, Stage
from darkroom.worker.storage.store import JobStore

BEGUN = frozenset({Stage.RUNNING, Stage.DELIVERING, Stage.DONE})
MAX_RETRY_SECONDS = 60.0
RECORD_BYTES = 64 * 1024
"""Bytes of a job's prompt and extra data that every job may have without being counted."""


def _nothing(_of: object) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class StoredElsewhere:
    """Bytes that others keep: the input files of jobs by id, the checkpoints of a job, the assets of a caller."""

    inputs: Callable[[Iterable[str]], int] = _nothing
    checkpoints: Callable[[Job], int] = _nothing
    assets: Callable[[str], int] = _nothing


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
        elsewhere: StoredElsewhere | None = None,
    ) -> None:
        self._config = config
        self._elsewhere = elsewhere or StoredElsewhere()
        self._records: dict[str, tuple[str, int]] = {}  # caller and bytes of the records of jobs, by job
        self._jobs = jobs
        self._seconds_per_job = seconds_per_job
        self._result_ttl_seconds = result_ttl_seconds
        self._arriving: dict[str, str] = {}  # ids of jobs that are being admitted -> their callers
        self._stored: dict[str, _Stored] = {}  # by job
        self._stored_bytes: dict[str, int] = {}  # by caller

    def reserve(self, caller: str, job_id: str, num_bytes: int = 0) -> None:
        """Count a job during its admission, until `release` is called. Raises LimitReached.

        `num_bytes` are those of the files that came with it.
        """
        if not caller:
            return
        self._check_waiting(caller)
        self._check_stored(caller, num_bytes)
        self._arriving[job_id] = caller

    @property
    def counts_bytes(self) -> bool:
        """True with a limit on stored bytes."""
        return self._config.stored_bytes is not None

    def check_job(self, caller: str, job_id: str, record_bytes: int) -> None:
        """Check the files and the record of a job that is being admitted. Raises LimitReached."""
        if not caller or not self.counts_bytes:
            return
        self._records[job_id] = caller, max(0, record_bytes - RECORD_BYTES)
        try:
            self._check_sum(caller, self.used_bytes(caller))
        except LimitReached:
            del self._records[job_id]
            raise

    def check_asset(self, caller: str, num_bytes: int) -> None:
        """Check a file that a caller is about to store. Raises LimitReached."""
        if caller and self.counts_bytes:
            self._check_sum(caller, self.used_bytes(caller) + num_bytes)

    def used_bytes(self, caller: str) -> int:
        """Return all bytes that are stored for a caller."""
        jobs = [job for job in self._jobs() if job.request.caller == caller]
        ids = {job.id for job in jobs} | {job_id for job_id, owner in self._arriving.items() if owner == caller}
        return (
            self._stored_bytes.get(caller, 0)
            + self._elsewhere.inputs(ids)
            + sum(self._elsewhere.checkpoints(job) for job in jobs if job.stage is Stage.RUNNING)
            + sum(num_bytes for owner, num_bytes in self._records.values() if owner == caller)
            + self._elsewhere.assets(caller)
        )

    def release(self, job_id: str) -> None:
        """End the reservation of a job that was admitted, and counts as waiting, or was refused."""
        self._arriving.pop(job_id, None)
        if job_id in self._records and all(job.id != job_id for job in self._jobs()):
            self._records.pop(job_id, None)

    def job_ended(self, job: Job) -> None:
        """Add the bytes of an ended job's outputs and record to its caller's usage."""
        _, record_bytes = self._records.pop(job.id, ("", 0))
        num_bytes = _bytes_of(job.outputs) + record_bytes
        if self.counts_bytes and job.request.caller and num_bytes:
            self._add(job.id, _Stored(job.request.caller, num_bytes, job.times.completed_at_ms or 0))

    def files_removed(self, job_id: str) -> None:
        """Subtract the files of a job that were removed from the disk, and its record."""
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
        length = sa.func.length(JOBS.c.prompt) + sa.func.length(JOBS.c.request)
        query = sa.select(
            JOBS.c.id, JOBS.c.request, JOBS.c.outputs, JOBS.c.finished_ms, length.label("record_bytes")
        ).where(sa.or_(JOBS.c.outputs != "[]", length > RECORD_BYTES))
        for row in await store.read(query):
            caller = str(json.loads(row.request).get("caller") or "")
            record_bytes = max(0, row.record_bytes - RECORD_BYTES)
            if caller and row.finished_ms is None:
                self._records[row.id] = caller, record_bytes
            elif caller:
                has_files = store.job_directory(row.id).is_dir()
                num_bytes = record_bytes + (_bytes_of(json.loads(row.outputs)) if has_files else 0)
                if num_bytes:
                    self._add(row.id, _Stored(caller, num_bytes, row.finished_ms))

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

    def _check_stored(self, caller: str, num_bytes: int) -> None:
        """Check whether a caller has room for files of a size, and for any output at all."""
        if self._config.stored_bytes is not None:
            used = self.used_bytes(caller)
            self._check_sum(caller, used + num_bytes, is_full=used >= self._config.stored_bytes)

    def _check_sum(self, caller: str, num_bytes: int, *, is_full: bool = False) -> None:
        allowed = self._config.stored_bytes
        if allowed is None or not (is_full or num_bytes > allowed):
            return
        finished_ms = (item.finished_ms for item in self._stored.values() if item.caller == caller)
        oldest_seconds = min(finished_ms, default=0) / 1000 or time.time()
        wait = oldest_seconds + self._result_ttl_seconds - time.time()
        raise LimitReached("stored_bytes", num_bytes, allowed, retry_after_seconds=max(MAX_RETRY_SECONDS, wait))


def _bytes_of(outputs: Iterable[object]) -> int:
    """Return the sum of the sizes in output records."""
    sizes = (record.get("size_bytes") for record in outputs if isinstance(record, dict))
    return sum(size for size in sizes if isinstance(size, int))
