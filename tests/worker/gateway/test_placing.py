"""Requests and announcements put to the routing: the stream of a job, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from worker.api.schemas import GenerateInput
from worker.errors import RequestRejected
from worker.gateway.placing import offer_of, placed

PROMPT: dict[str, Any] = {"1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "a.safetensors"}}}
LOADED = {"worker": "one", "speed": 0.1, "price_per_hour": 3.6, "wait_seconds": 1.0, "models": ["a.safetensors"]}
OTHER = {"worker": "two", "speed": 0.1, "price_per_hour": 3.6, "wait_seconds": 1.0, "models": []}


def given(**fields: Any) -> GenerateInput:
    return GenerateInput(workflow_json=PROMPT, **fields)


def seconds_of_a_unit(speed: float) -> float:
    return next(iter(_refused(given(deadline=0.001), [{**LOADED, "speed": speed}]).values()))


def _refused(request: GenerateInput, entries: list[dict[str, Any]]) -> dict[str, float]:
    with pytest.raises(RequestRejected) as caught:
        placed(request, PROMPT, entries)
    return {str(problem.field): problem.allowed["minimum"] for problem in caught.value.problems}


def test_a_job_goes_to_the_stream_of_the_model_that_the_chosen_worker_has() -> None:
    assert placed(given(), PROMPT, [OTHER, LOADED]) == "a.safetensors"


def test_a_job_goes_to_all_where_nobody_has_its_model_or_the_one_who_has_it_is_busy_for_long() -> None:
    assert placed(given(), PROMPT, [OTHER]) == ""
    assert placed(given(), PROMPT, [OTHER, {**LOADED, "wait_seconds": 900.0}]) == ""


def test_everything_is_accepted_while_no_speed_is_known() -> None:
    assert placed(given(deadline=0.001, max_cost=0.0), PROMPT, [{**LOADED, "speed": 0}]) == ""
    assert placed(given(deadline=0.001), PROMPT, []) == ""


def test_a_deadline_that_nobody_keeps_is_refused_with_the_least_that_is_possible() -> None:
    least = seconds_of_a_unit(speed=1e9)
    assert least == 1.0  # the wait alone
    assert placed(given(deadline=1.5), PROMPT, [{**LOADED, "speed": 1e9}]) == "a.safetensors"


def test_a_budget_that_nobody_keeps_is_refused_with_the_least_price() -> None:
    found = _refused(given(max_cost=0.0), [LOADED])
    assert found["input.max_cost"] > 0
    assert placed(given(max_cost=found["input.max_cost"] * 1.01), PROMPT, [LOADED]) == "a.safetensors"


def test_an_announcement_with_nonsense_is_a_worker_of_unknown_speed() -> None:
    offer = offer_of({"worker": "odd", "speed": "fast", "wait_seconds": -3, "models": "all", "price_per_hour": True})
    assert (offer.speed, offer.wait_seconds, offer.load_seconds, offer.price_per_hour) == (0.0, 0.0, {}, 0.0)
