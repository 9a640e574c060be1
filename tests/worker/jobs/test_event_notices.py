"""Choice of the notice that is due, made purely."""

from __future__ import annotations

from darkroom.worker.jobs.event_notices import PROGRESS_SECONDS, SentNotices, next_notice
from darkroom.worker.storage.job import Job, JobRequest, JobState, JobTimes, WebhookEvent


def job_at(percent: float) -> Job:
    job = Job("id", 1, "hash", JobRequest(), {}, JobTimes(queued_at_ms=0))
    job.state = JobState.GENERATING
    job.progress.percent = percent
    return job


def test_the_start_is_reported_once_and_first() -> None:
    assert next_notice(job_at(50), ("started", "progress"), SentNotices(), 0) == "started"
    assert next_notice(job_at(0), ("started",), SentNotices(has_started=True, at_seconds=0), 100) is None


def test_a_waiting_job_is_reported_as_queued_once_and_not_after_a_restart() -> None:
    job = Job("id", 1, "hash", JobRequest(), {}, JobTimes(queued_at_ms=0))
    events: tuple[WebhookEvent, ...] = ("queued", "started", "progress")
    assert next_notice(job, events, SentNotices(), 0) == "queued"
    assert next_notice(job, events, SentNotices(was_queued=True), 0) is None
    job.is_recovered = True
    assert next_notice(job, events, SentNotices(), 0) is None


def test_progress_is_reported_when_there_is_some_and_not_too_often() -> None:
    sent = SentNotices(has_started=True, percent=10, at_seconds=100)
    later = 100 + PROGRESS_SECONDS
    assert next_notice(job_at(20), ("progress",), sent, later) == "progress"
    assert next_notice(job_at(20), ("progress",), sent, later - 0.1) is None
    assert next_notice(job_at(10), ("progress",), sent, later) is None
    assert next_notice(job_at(20), ("started",), sent, later) is None
