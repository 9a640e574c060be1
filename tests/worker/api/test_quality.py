"""`quality` of a request: checked with the allowed values, sent to the engine, and reported with the result."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.modifiers.modifier import ModificationsRejected
from darkroom.modifiers.registry import build_registry
from darkroom.worker.api.job_making import quality_of
from darkroom.worker.api.schemas import parse_generate
from darkroom.worker.engines.outcome import read_outcome
from darkroom.worker.errors import RequestRejected
from darkroom.worker.jobs.envelope import result_of
from darkroom.worker.storage.job import Job, JobRequest, JobTimes

WORKFLOW = {"1": {"class_type": "EmptyImage", "inputs": {}}}


def parsed(**fields: Any) -> Any:
    return parse_generate({"input": {"workflow_json": WORKFLOW, **fields}})


def test_an_unknown_quality_is_refused_with_the_allowed_ones() -> None:
    with pytest.raises(RequestRejected) as refused:
        parsed(quality="best")
    (problem,) = refused.value.problems
    assert problem.field == "input.quality" and "'exact', 'same', 'close' or 'draft'" in str(problem.allowed)


def test_a_modifier_takes_a_quality_and_refuses_an_unknown_one() -> None:
    registry = build_registry()
    assert "quality" not in str(registry.build("Text2Image", {"prompt": "a", "quality": "draft"}))
    with pytest.raises(ModificationsRejected) as refused:
        registry.build("Text2Image", {"prompt": "a", "quality": "best"})
    (problem,) = refused.value.problems
    assert problem["field"] == "quality" and "draft" in str(problem["allowed"])


def test_the_requests_own_quality_wins_over_the_modifications() -> None:
    request = {"modifier": "Text2Image", "modifications": {"prompt": "a", "quality": "draft"}}
    assert quality_of(parse_generate({"input": request})) == "draft"
    assert quality_of(parse_generate({"input": {**request, "quality": "exact"}})) == "exact"
    assert quality_of(parsed()) == "same"


def test_the_result_has_what_the_engine_used() -> None:
    used = {"quality": "same", "strategies": ["prompt_cache"], "unused": {}, "error": 0.0}
    messages = [["execution_start", {}], ["tuning_used", {**used, "prompt_id": "p", "timestamp": 1}]]
    outcome = read_outcome({"outputs": {}, "status": {"status_str": "success", "messages": messages}})
    assert outcome.tuning == used
    job = Job("a", 1, "", JobRequest(), WORKFLOW, JobTimes(0), tuning=outcome.tuning)
    assert result_of(job, [])["tuning"] == used
    assert "tuning" not in result_of(Job("a", 1, "", JobRequest(), WORKFLOW, JobTimes(0)), [])
