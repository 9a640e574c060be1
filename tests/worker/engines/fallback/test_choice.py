"""Reasons for which another engine than ours is chosen, and those for which none would help."""

from __future__ import annotations

import pytest

from darkroom.worker.engines.fallback.choice import (
    ChoiceKind,
    better_refusal,
    choice_for,
    choice_for_failure,
    choice_for_refusal,
    may_be_run_elsewhere,
)
from darkroom.worker.engines.fallback.uses import MAX_CLASSES, FallbackUses
from darkroom.worker.errors import EngineCrashed, JobTimedOut, NodeFailed, OutOfMemory, Problem, RequestRejected

UNKNOWN = Problem("no such class", node_id="1", class_type="Kling", type="missing_node_type")
NOT_LISTED = Problem("not in the list", node_id="2", class_type="KSampler", type="value_not_in_list")
TOO_LARGE = Problem("too large", node_id="2", class_type="KSampler", type="value_bigger_than_max")


def test_only_what_comes_of_the_engine_may_run_elsewhere() -> None:
    assert may_be_run_elsewhere([UNKNOWN, NOT_LISTED])
    assert not may_be_run_elsewhere([UNKNOWN, TOO_LARGE]) and not may_be_run_elsewhere([])


def test_a_choice_names_what_our_engine_lacks() -> None:
    lacking = choice_for([NOT_LISTED, UNKNOWN])
    assert (lacking.kind, lacking.class_types) == (ChoiceKind.UNKNOWN_CLASS, ("Kling",))
    value = choice_for([NOT_LISTED])
    assert value.kind is ChoiceKind.UNKNOWN_VALUE and value.reason == "node 2: not in the list"


@pytest.mark.parametrize(
    "error",
    [
        NodeFailed("it broke", node_id="1", class_type="Say"),
        EngineCrashed("it died", class_type="Say"),
        RequestRejected([Problem("no model", class_type="Say", type="BadModelFile")]),
    ],
)
def test_a_failure_of_our_engine_may_be_repeated(error: NodeFailed | EngineCrashed | RequestRejected) -> None:
    choice = choice_for_failure(error)
    assert choice is not None and choice.class_types == ("Say",) and choice.kind is ChoiceKind.FAILED


@pytest.mark.parametrize(
    "error", [OutOfMemory("full"), JobTimedOut("late"), RequestRejected([Problem("x", type="BadMedia")])]
)
def test_a_failure_that_another_engine_would_share_is_final(error: OutOfMemory | JobTimedOut | RequestRejected) -> None:
    assert choice_for_failure(error) is None


def test_a_refusal_at_the_beginning_of_a_job_is_judged_as_that_of_a_request() -> None:
    assert choice_for_refusal(RequestRejected([UNKNOWN])) is not None
    assert choice_for_refusal(RequestRejected([TOO_LARGE])) is None
    assert choice_for_refusal(NodeFailed("x")) is None


def test_the_refusal_of_the_engine_that_knows_more_classes_is_shown() -> None:
    other = Problem("no such class", class_type="Nowhere", type="missing_node_type")
    assert better_refusal([UNKNOWN, other], [other]) == [other]
    assert better_refusal([UNKNOWN], [TOO_LARGE]) == [TOO_LARGE]
    assert better_refusal([NOT_LISTED], [NOT_LISTED]) == [NOT_LISTED]


def test_classes_above_a_number_are_counted_together() -> None:
    uses = FallbackUses()
    for number in range(MAX_CLASSES + 3):
        problem = Problem("none", class_type=f"Class{number}", type="missing_node_type")
        uses.add(choice_for([problem]))
    (family,) = uses.collect()
    counts = {sample.labels["class_type"]: sample.value for sample in family.samples}
    assert len(counts) == MAX_CLASSES + 1 and counts["other"] == 3 and counts["Class0"] == 1
