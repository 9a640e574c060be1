"""The comparison itself; and the whole of it against a ComfyUI server where `COMPARE_COMFYUI_URL` names one.

`COMPARE_BASE` is then a base directory for our engine, `COMPARE_CHECKPOINT` a checkpoint that both have.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmark.same_results import Answer, Case, compare, differences, make_cases, running_fronts, wrong_with


def test_ids_times_paths_and_links_are_left_out() -> None:
    ours = {"id": "a", "timings": {"total_ms": 3}, "output": [{"filename": "x.png", "url": "1", "local_path": "2"}]}
    theirs = {"id": "b", "timings": {"total_ms": 9}, "output": [{"filename": "x.png", "url": "3", "local_path": "4"}]}
    assert list(differences(ours, theirs)) == []


@pytest.mark.parametrize(
    "theirs",
    [
        {"status": "failed", "output": [{"filename": "x.png"}]},
        {"status": "completed", "output": []},
        {"status": "completed", "output": [{"filename": "y.png"}]},
        {"status": "completed", "output": [{"filename": "x.png", "subfolder": "a"}]},
    ],
)
def test_everything_else_counts(theirs: dict[str, object]) -> None:
    assert list(differences({"status": "completed", "output": [{"filename": "x.png"}]}, theirs))


def test_two_wrong_answers_that_agree_are_no_success() -> None:
    wrong = Answer(500, {"status": "failed"})
    assert len(list(wrong_with(Case("any", {}), wrong, wrong))) == 2


def test_the_cases_hold_every_kind_of_end() -> None:
    cases = make_cases("a.safetensors", "run")
    assert {case.status for case in cases} == {200, 422, 499, 500}
    assert len({case.name for case in cases}) == len(cases)


@pytest.mark.slow
@pytest.mark.skipif("COMPARE_COMFYUI_URL" not in os.environ, reason="COMPARE_COMFYUI_URL names no ComfyUI server")
def test_our_engine_and_comfyui_give_the_same_results() -> None:
    base, checkpoint = Path(os.environ["COMPARE_BASE"]), os.environ["COMPARE_CHECKPOINT"]
    with running_fronts(base, os.environ["COMPARE_COMFYUI_URL"]) as (ours, theirs):
        found = compare(ours, theirs, checkpoint)
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
