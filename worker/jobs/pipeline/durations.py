"""Durations of the stages of a job, in milliseconds."""

from __future__ import annotations

import time

from darkroom.worker.storage.job import Job, Stage


def milliseconds_since(began: float) -> int:
    """Return the milliseconds since a time of the monotonic clock."""
    return round((time.monotonic() - began) * 1000)


def record_run(job: Job, queued_at: float, ended_at: float) -> None:
    """Divide the time of one attempt, from its position in the queue to its end, into wait and generation."""
    has_begun = job.stage is Stage.RUNNING and job.began_at >= queued_at
    began_at = job.began_at if has_begun else ended_at
    job.times.add("wait", round((began_at - queued_at) * 1000))
    if has_begun:
        job.times.add("generation", round((ended_at - began_at) * 1000))
