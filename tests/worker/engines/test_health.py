"""Trouble in `/health`, from the state of engines and floors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from darkroom.worker.engines.health import Floor, engine_as_json, find_worker_problems
from darkroom.worker.engines.loss import Loss, LossReason
from darkroom.worker.engines.watch import EngineReport, EngineState

UP = EngineReport(
    url="http://engine",
    state=EngineState.UP,
    num_prompts=1,
    pid=7,
    heartbeat_age_seconds=0.5,
    running="job-1",
    node_id="3",
    quiet_seconds=2.0,
    memory_bytes=100,
    restarts={LossReason.CRASHED: 2},
    last_loss=Loss(LossReason.CRASHED, -11),
    is_stuck=False,
)


def troubles(*engines: EngineReport, floors: tuple[Floor, ...] = (), wrong: tuple[str, ...] = ()) -> list[str]:
    return find_worker_problems(engines, floors, wrong, silence_seconds=60)


@pytest.mark.parametrize("state", [EngineState.UP, EngineState.DRAINING, EngineState.RESTARTING])
def test_an_engine_that_works_or_is_being_started_again_is_no_trouble(state: EngineState) -> None:
    assert troubles(replace(UP, state=state)) == []


@pytest.mark.parametrize("state", [EngineState.STARTING, EngineState.DOWN, EngineState.FAILED])
def test_an_engine_that_nobody_brings_up_is(state: EngineState) -> None:
    assert len(troubles(replace(UP, state=state))) == 1


def test_one_that_takes_longer_to_start_than_another_is_none() -> None:
    assert troubles(UP, replace(UP, state=EngineState.STARTING)) == []


def test_a_node_without_progress_is_named() -> None:
    (said,) = troubles(replace(UP, is_stuck=True, quiet_seconds=700.0))
    assert "node 3 of job-1" in said and "700 s" in said


def test_silence_low_floors_and_what_is_wrong_inside_are_troubles() -> None:
    floors = (Floor("disk", 5, 10), Floor("memory", 10, 10), Floor("unknown", None, 10))
    found = troubles(replace(UP, heartbeat_age_seconds=61.0), floors=floors, wrong=("job-2 has no task",))
    assert found[0] == "job-2 has no task" and "61 s ago" in found[1] and found[2:] == ["disk is below its floor"]


def test_an_engine_is_shown_with_its_restarts_and_its_last_loss() -> None:
    shown: Any = engine_as_json(UP)
    assert shown["healthy"] and shown["restarts"] == {"crashed": 2} and shown["last_loss"]["reason"] == "crashed"
    assert not engine_as_json(replace(UP, is_stuck=True))["healthy"]
