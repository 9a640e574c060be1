"""Requests and announcements put to the routing: the stream of a job, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.contract.graph.work import PromptWork
from darkroom.worker.api.schemas import GenerateInput
from darkroom.worker.errors import RequestRejected
from darkroom.worker.gateway.placing import Placement, offer_of, placed

PROMPT: dict[str, Any] = {"1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "a.safetensors"}}}
WORK = PromptWork(PROMPT)
LOADED = {"worker": "one", "speed": 0.1, "price_per_hour": 3.6, "wait_seconds": 1.0, "models": ["a.safetensors"]}
EVERY = Placement("", 0)
OTHER = {"worker": "two", "speed": 0.1, "price_per_hour": 3.6, "wait_seconds": 1.0, "models": []}


def given(**fields: Any) -> GenerateInput:
    return GenerateInput(workflow_json=PROMPT, **fields)


def seconds_of_a_unit(speed: float) -> float:
    return next(iter(_refused(given(deadline=0.001), [{**LOADED, "speed": speed}]).values()))


def _refused(request: GenerateInput, entries: list[dict[str, Any]]) -> dict[str, float]:
    with pytest.raises(RequestRejected) as caught:
        placed(request, WORK, entries)
    return {str(problem.field): problem.allowed["minimum"] for problem in caught.value.problems}


def test_a_job_goes_to_the_stream_of_the_model_that_the_chosen_worker_has() -> None:
    assert placed(given(), WORK, [OTHER, LOADED]) == Placement("a.safetensors", 0)


def test_a_job_goes_to_all_where_nobody_has_its_model_or_the_one_who_has_it_is_busy_for_long() -> None:
    assert placed(given(), WORK, [OTHER]) == EVERY
    assert placed(given(), WORK, [OTHER, {**LOADED, "wait_seconds": 900.0}]) == EVERY


def test_everything_is_accepted_while_no_speed_is_known() -> None:
    assert placed(given(deadline=0.001, max_cost=0.0), WORK, [{**LOADED, "speed": 0}]) == EVERY
    assert placed(given(deadline=0.001), WORK, []) == EVERY


def test_a_deadline_that_nobody_keeps_is_refused_with_the_least_that_is_possible() -> None:
    least = seconds_of_a_unit(speed=1e9)
    assert least == 1.0  # the wait alone
    assert placed(given(deadline=1.5), WORK, [{**LOADED, "speed": 1e9}]).model == "a.safetensors"


def test_a_budget_that_nobody_keeps_is_refused_with_the_least_price() -> None:
    found = _refused(given(max_cost=0.0), [LOADED])
    assert found["input.max_cost"] > 0
    assert placed(given(max_cost=found["input.max_cost"] * 1.01), WORK, [LOADED]).model == "a.safetensors"


def test_a_deadline_that_the_queue_would_miss_goes_before_jobs_that_have_time() -> None:
    run = seconds_of_a_unit(speed=0.1) - 1.0  # the rest is the wait
    fleet = [LOADED, {**LOADED, "worker": "two"}]
    request = given(deadline=1.0 + run * 3.5, priority=-2)
    assert placed(request, WORK, fleet, num_queued=4).priority == -2
    assert placed(request, WORK, fleet, num_queued=6).priority == 1
    assert placed(given(priority=5, deadline=1.0 + run * 3.5), WORK, fleet, num_queued=600).priority == 5
    assert placed(given(), WORK, fleet, num_queued=600).priority == 0


def test_an_announcement_with_nonsense_is_a_worker_of_unknown_speed() -> None:
    offer = offer_of({"worker": "odd", "speed": "fast", "wait_seconds": -3, "models": "all", "price_per_hour": True})
    assert (offer.speed, offer.wait_seconds, offer.load_seconds, offer.price_per_hour) == (0.0, 0.0, {}, 0.0)
