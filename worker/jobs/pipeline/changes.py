"""JobChanges: changes of jobs on their way, which are stored, traced, logged and notified to those who wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from darkroom.worker.engines.preview_frames import PreviewFrame
from darkroom.worker.jobs.job_log import JobLog
from darkroom.worker.jobs.job_models import JobModels
from darkroom.worker.jobs.job_spans import JobSpans
from darkroom.worker.jobs.pipeline.feed import JobFeed
from darkroom.worker.storage.job import Job, JobState, Stage
from darkroom.worker.storage.store import JobStore

QUEUED_WORDS = "Preprocessing complete. Queued for generation."
STARTED_BY = frozenset({"execution_start", "executing", "progress"})


class JobChanges:
    """The feed, the log and the spans of jobs, which every change of a job goes through.

    `on_start` is called when an engine begins with a job.
    """

    def __init__(
        self,
        store: JobStore,
        models: JobModels | None,
        on_start: Callable[[Job], None],
        job_log: JobLog | None,
        spans: JobSpans | None,
    ) -> None:
        self.feed = JobFeed()
        self.log = job_log or JobLog()
        self.spans = spans or JobSpans()
        self._store = store
        self._models = models
        self._on_start = on_start

    def changed(self, job: Job) -> None:
        """Store a job that has changed, and notify those who wait for it."""
        self.spans.changed(job)
        self._store.save_soon(job)
        self.feed.notify(job.id)

    def move(self, job: Job, state: JobState, message: str, stage: Stage) -> None:
        """Move a job to a state and a stage of it."""
        if job.state is not state:
            job.move_to(state, message, stage)
        else:
            job.note(message, stage)
        self.changed(job)

    def queue_again(self, job: Job) -> None:
        """Let a job wait for an engine once more."""
        job.note(QUEUED_WORDS, job.waiting_stage)
        self.changed(job)

    def say(self, job: Job, message: str) -> None:
        """Set the message of a job between two states; it is not stored, as progress is not."""
        job.message = message
        self.feed.notify(job.id)

    def started(self, job: Job, at: float) -> None:
        """Record that an engine has begun with a job at a time of the monotonic clock. No effect if it is known."""
        if job.stage is not Stage.RUNNING:
            job.began_at = at
            self.move(job, JobState.GENERATING, f"Generation started (ComfyUI job: {job.prompt_id})", Stage.RUNNING)
            self.log.started(job)
            self._on_start(job)

    def on_message(self, job: Job, kind: str, data: Mapping[str, Any]) -> None:
        """Take an engine's progress report over into the job."""
        progress = job.progress
        progress.begin(job.prompt)
        self.spans.on_message(job, kind, data)
        if kind in STARTED_BY and job.stage is not Stage.RUNNING and not self._is_fetching(job):
            self.started(job, time.monotonic())
        if kind == "execution_cached":
            progress.skip(data.get("nodes") or ())
            self.feed.notify(job.id)
        elif kind == "executing" and data.get("node") is not None:
            progress.enter(str(data["node"]))
            self.feed.notify(job.id)
        elif kind == "progress" and data.get("max"):
            progress.step(str(data.get("node")), data.get("value", 0), data["max"])
            job.message = f"Progress: {progress.percent:.1f}% ({progress.value:g}/{progress.maximum:g})"
            self.feed.notify(job.id)

    def on_preview(self, job: Job, frame: PreviewFrame) -> None:
        """Take a preview over into the job."""
        job.preview = frame
        self.feed.notify(job.id)

    def _is_fetching(self, job: Job) -> bool:
        """Return True while an engine waits for files of the job: it has not begun, and losing it costs no attempt."""
        return self._models is not None and self._models.is_fetching(job.id)
