"""QueueInfo: how many jobs are in each part of the way, and where one of them stands."""

from __future__ import annotations

from typing import Any

from worker.jobs.admission import Admission
from worker.jobs.job import Job, JobState
from worker.jobs.store import JobStore

QUEUE_NAMES = {
    JobState.PENDING: "preprocessing",
    JobState.PROCESSING: "preprocessing",
    JobState.GENERATING: "generation",
    JobState.GENERATED: "postprocessing",
}


class QueueInfo:
    def __init__(self, store: JobStore, admission: Admission) -> None:
        self._store = store
        self._admission = admission

    def sizes(self) -> dict[str, int]:
        counts = {"preprocessing": 0, "generation": 0, "postprocessing": 0}
        for job in self._store.jobs.values():
            counts[QUEUE_NAMES[job.state]] += 1
        return {
            "preprocess_queue_size": counts["preprocessing"],
            "generation_queue_size": counts["generation"],
            "postprocess_queue_size": counts["postprocessing"],
        }

    def position_of(self, job: Job) -> dict[str, Any]:
        """Position 1 is the job that the engine works at."""
        queue = QUEUE_NAMES.get(job.state, "unknown")
        alike = [other for other in self._store.jobs.values() if QUEUE_NAMES.get(other.state) == queue]
        before = sum(1 for other in alike if other.number < job.number)
        return {
            "current_queue": queue,
            "position": before + 1,
            "queue_size": len(alike),
            "estimated_wait_time": round(self._admission.estimated_wait_seconds(before), 2),
        }
