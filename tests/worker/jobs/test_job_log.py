"""Log records of jobs: their level, and no prompt in them."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from darkroom.worker.jobs.job_log import JobLog
from darkroom.worker.observe.prompt_texts import PromptTexts
from darkroom.worker.storage.job import Job, JobFailure, JobRequest, JobState, JobTimes

PROMPT = {"1": {"class_type": "Draw", "inputs": {"text": "a cat in red boots"}}}


def ended(state: JobState, failure: JobFailure | None = None, job_log: JobLog | None = None) -> Any:
    job = Job("one", 1, "hash", JobRequest(), PROMPT, JobTimes(queued_at_ms=0, wait_ms=5))
    job.state, job.failure = state, failure
    with capture_logs() as records:
        (job_log or JobLog()).ended(job)
    return records[0]


@pytest.mark.parametrize(("status", "level"), [(500, "error"), (502, "error"), (504, "error"), (422, "warning")])
def test_the_end_of_a_failed_job_has_the_level_of_its_cause(status: int, level: str) -> None:
    shown = ended(JobState.FAILED, JobFailure(status, "some_code", "words", {"node_id": "7", "problems": ["long"]}))
    assert (shown["log_level"], shown["code"], shown["node_id"]) == (level, "some_code", "7")
    assert shown["category"] == "error" and "problems" not in shown
    assert (shown["request_id"], shown["prompt_id"], shown["wait_ms"]) == ("one", "one-1", 5)


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.CANCELLED])
def test_a_good_end_is_information(state: JobState) -> None:
    assert ended(state)["log_level"] == "info"


@pytest.mark.parametrize("has_prompts", [True, False])
def test_a_prompt_is_logged_only_where_it_is_wished(has_prompts: bool) -> None:
    texts = PromptTexts()
    job_log = JobLog(texts, has_prompts=has_prompts)
    job = Job("one", 1, "hash", JobRequest(), PROMPT, JobTimes(0))
    with capture_logs() as records:
        job_log.hold(job)
        job_log.started(job)
    assert ("prompt" in records[0]) == has_prompts
    said = "cannot draw a cat in red boots!"
    assert texts.hide(said) == (said if has_prompts else "cannot draw [prompt]!")
