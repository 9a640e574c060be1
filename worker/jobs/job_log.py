"""JobLog: the log records of a job's start and end, at the level of what happened, without its prompt.

A record has the job's `request_id`, its `prompt_id` in the engine, and of a failure the code, the status and the node.
Lists of problems and allowed values are in the result alone.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import structlog

from darkroom.worker.observe.prompt_texts import PromptTexts
from darkroom.worker.storage.job import Job, JobState

LOGGED_FIELDS: Final = ("node_id", "class_type", "error_type", "reason", "attempts", "limit_seconds", "limit_bytes")

log = structlog.get_logger("jobs")


class JobLog:
    """Writer of jobs' records. `has_prompts`: prompts are logged; otherwise their texts are held back by `texts`."""

    def __init__(self, texts: PromptTexts | None = None, *, has_prompts: bool = False) -> None:
        self._texts = texts or PromptTexts()
        self._has_prompts = has_prompts

    def hold(self, job: Job) -> None:
        """Keep the texts of a job's prompt out of all records from now on, unless prompts are logged."""
        if not self._has_prompts:
            self._texts.hold(job.id, job.prompt)

    def started(self, job: Job) -> None:
        """Log that an engine has begun with a job."""
        shown: dict[str, Any] = {"request_id": job.id, "prompt_id": job.prompt_id, "attempt": job.attempt}
        if job.request.modifier:
            shown["modifier"] = job.request.modifier
        if self._has_prompts:
            shown["prompt"] = dict(job.prompt)
        log.info("job started", category="execution", **shown)

    def ended(self, job: Job) -> None:
        """Log the end of a job, whose prompt is then released."""
        level = end_level(job)
        log.log(
            level,
            "job ended",
            category="execution" if level == logging.INFO else "error",
            request_id=job.id,
            prompt_id=job.prompt_id,
            state=job.state.value,
            num_outputs=len(job.outputs),
            **{name: value for name, value in job.times.as_json().items() if value is not None},
            **_failure_fields(job),
        )
        self._texts.release(job.id)


def end_level(job: Job) -> int:
    """Return the log level of a job's end: an error where the worker or a node failed, a warning for the caller's."""
    if job.state in (JobState.COMPLETED, JobState.CANCELLED) or job.failure is None:
        return logging.INFO
    return logging.ERROR if job.failure.status >= 500 else logging.WARNING


def _failure_fields(job: Job) -> dict[str, Any]:
    failure = job.failure
    if failure is None:
        return {}
    known = {name: failure.fields[name] for name in LOGGED_FIELDS if failure.fields.get(name) is not None}
    return {"code": failure.code, "status": failure.status, "message": failure.message, **known}
