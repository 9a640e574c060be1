"""Jobs of the front: admission, pipeline, queue and quotas, built from the settings."""

from __future__ import annotations

import time
from dataclasses import dataclass

from darkroom.worker.app.storage import Storage
from darkroom.worker.engines.fallback.fallback_engine import FallbackEngine
from darkroom.worker.engines.health import Floor
from darkroom.worker.engines.pool import EnginePool
from darkroom.worker.errors import TryLater
from darkroom.worker.jobs.admission import Admission, Gate, free_bytes_of
from darkroom.worker.jobs.caller_quota import CallerQuota
from darkroom.worker.jobs.job_log import JobLog
from darkroom.worker.jobs.job_spans import JobSpans
from darkroom.worker.jobs.pipeline.parts import PipelineHooks, PipelineLimits, PipelineParts
from darkroom.worker.jobs.pipeline.pipeline import Pipeline
from darkroom.worker.jobs.queue_info import QueueInfo
from darkroom.worker.jobs.removal import JobRemoval
from darkroom.worker.jobs.wait_estimate import RunClock
from darkroom.worker.observe.memory import MachineMemory
from darkroom.worker.observe.ttl_cached import TtlCached
from darkroom.worker.settings.jobs import QueueLimits
from darkroom.worker.settings.settings import Settings
from darkroom.worker.storage.store import JobStore


@dataclass(frozen=True, slots=True)
class JobArea:
    """Owners of what happens to jobs."""

    store: JobStore
    pool: EnginePool
    limits: QueueLimits
    gate: Gate
    admission: Admission
    pipeline: Pipeline
    run_clock: RunClock
    queue_info: QueueInfo
    quota: CallerQuota
    removal: JobRemoval
    free_bytes: TtlCached[int]
    """Free bytes of the disk with the least."""
    available_bytes: TtlCached[int | None]
    """Available bytes of memory; None where unknown."""

    def cancel(self, job_id: str) -> None:
        """Cancel a job that has not ended here; without one do nothing."""
        job = self.store.jobs.get(job_id)
        if job is not None and not self.pipeline.is_deferred(job):
            self.pipeline.cancel(job)

    def has_room(self) -> bool:
        """Return True if a job of a broker would be accepted, and an engine serves."""
        try:
            self.admission.check_room()
        except TryLater:
            return False
        return bool(self.pool.clients_serving)

    def floors(self) -> list[Floor]:
        """Return the resources below whose floors no job is accepted."""
        return [
            Floor("disk", self.free_bytes(), max(1, self.limits.min_free_disk_bytes)),
            Floor("memory", self.available_bytes(), self.limits.min_free_memory_bytes),
        ]


def build_jobs(
    settings: Settings,
    storage: Storage,
    pool: EnginePool,
    fallback: FallbackEngine | None,
    memory: MachineMemory,
    run_clock: RunClock,
    hooks: PipelineHooks,
    job_log: JobLog,
    spans: JobSpans,
) -> JobArea:
    """Build the owners of jobs. `hooks` are called from the first job on."""
    limits, store, gate = settings.queue_limits(), storage.store, Gate()
    queue_info = QueueInfo(
        store.jobs.values,
        lambda: len(pool.clients_serving),
        run_clock,
        lambda priority: store.turn_ms(int(time.time() * 1000), priority),
    )
    free_bytes = TtlCached(free_bytes_of(settings.folders.state_path, storage.external_io.input_directory))
    available_bytes = TtlCached(memory.available_bytes)
    quota = CallerQuota(
        settings.callers,
        store.jobs.values,
        lambda: queue_info.seconds_per_job,
        settings.retention.result_ttl_seconds,
        storage.stored_elsewhere(),
    )
    pipeline = Pipeline(
        store,
        pool,
        PipelineParts(
            storage.external_io.inputs, storage.external_io.outputs, storage.models, storage.checkpoints, fallback
        ),
        PipelineLimits(
            limits.job_timeout_seconds,
            settings.pipeline.num_fetching,
            settings.callers.jobs_running,
            settings.checkpoints.preempt_priority,
        ),
        hooks,
        job_log=job_log,
        spans=spans,
    )
    return JobArea(
        store,
        pool,
        limits,
        gate,
        Admission(store, gate, limits, queue_info, free_bytes, available_bytes),
        pipeline,
        run_clock,
        queue_info,
        quota,
        JobRemoval(store, quota.files_removed),
        free_bytes,
        available_bytes,
    )
