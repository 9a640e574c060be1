"""Nodes that do not look up, before a real worker: their jobs end on time, once, and no other job pays for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.nodes import die, draw, stick
from tests.faults.rig import Rig, a_rig
from tests.worker.running_front import until

WAYS = ("python", "lock", "swallow")
IN_TIME_SECONDS = 40.0  # from the cancellation to the next job's image, at the default settings


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with a_rig(tmp_path) as rig:
        yield rig


async def losses_of(rig: Rig) -> dict[str, int]:
    (engine,) = (await rig.get("/health"))[1]["backends"]
    return dict(engine["restarts"])


async def ends_once_and_frees_the_engine(rig: Rig, how: str, *, is_cancelled: bool) -> float:
    """Return the seconds from the end of the stuck job to the end of the two that waited behind it."""
    names = ["before", "behind-1", "behind-2"]
    await rig.submit("before", draw("before", seconds=1.5))  # so that the others are accepted while the engine answers
    await rig.submit("stuck", stick("stuck", how))
    for name in names[1:]:
        await rig.submit(name, draw(name))
    await rig.until_begun("stuck")
    if is_cancelled:
        assert (await rig.post("/cancel/stuck"))[1]["status"] == "cancelled"
    else:
        assert (await rig.until("stuck"))["status"] == "timeout"
    began = time.monotonic()
    assert [(await rig.until(name))["status"] for name in names] == ["completed"] * 3
    seconds = time.monotonic() - began
    assert (await rig.result("stuck"))["status"] == ("cancelled" if is_cancelled else "timeout")
    assert [rig.num_begun(name) for name in ("stuck", *names[1:])] == [1] * 3
    # The lock may be taken before the result of the one that has just ended could be read from the engine.
    assert rig.num_begun("before") <= (2 if how == "lock" else 1)
    log = rig.log.read_text()
    assert "job retried after engine loss" not in log, "another job paid with an attempt"
    return seconds


@pytest.mark.slow
async def test_an_engine_whose_node_holds_the_interpreter_is_replaced_after_the_grace(rig: Rig) -> None:
    await rig.start(constants={"supervision": {"cancel_grace_seconds": 1}})
    await rig.until_ready()
    await ends_once_and_frees_the_engine(rig, "lock", is_cancelled=True)
    assert await losses_of(rig) == {"stop_ignored": 1}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", WAYS)
async def test_the_next_job_runs_in_time_after_a_cancel(rig: Rig, how: str) -> None:
    await rig.start()
    await rig.until_ready()
    assert await ends_once_and_frees_the_engine(rig, how, is_cancelled=True) < IN_TIME_SECONDS
    assert await losses_of(rig) == {"stop_ignored": 1}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", WAYS)
async def test_a_job_ends_by_its_time_limit_and_frees_the_engine(rig: Rig, how: str) -> None:
    await rig.start(constants={"supervision": {"cancel_grace_seconds": 1}}, JOB_TIMEOUT="8")
    await rig.until_ready()
    await ends_once_and_frees_the_engine(rig, how, is_cancelled=False)
    assert await losses_of(rig) == {"stop_ignored": 1}


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_job_that_silences_the_engine_is_not_run_again(rig: Rig) -> None:
    await rig.start(constants={"supervision": {"silence_seconds": 3}})
    await rig.until_ready()
    await rig.submit("stuck", stick("stuck", "lock"))
    failed = await rig.until("stuck")
    assert (failed["status"], failed["error"]["status"], failed["error"]["code"]) == ("failed", 500, "engine_hung")
    assert (failed["error"]["reason"], failed["error"]["attempts"]) == ("unresponsive", 1)
    assert rig.num_begun("stuck") == 1
    await rig.submit("next", draw("next"))
    assert (await rig.until("next"))["status"] == "completed"


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_hangs_and_crashes_in_a_row_leave_the_worker_serving(rig: Rig) -> None:
    await rig.start(constants={"supervision": {"cancel_grace_seconds": 0.5, "max_restarts": 3}}, STALL_TIMEOUT="3")
    await rig.until_ready()
    for number in range(6):
        await rig.submit(f"deadly-{number}", die(f"deadly-{number}"))
        assert (await rig.until(f"deadly-{number}"))["error"]["code"] == "engine_crashed"
    for number in range(7):
        name = f"stuck-{number}"
        await rig.submit(name, stick(name, "python"))
        if number % 2:
            await rig.until_begun(name)
            await rig.post(f"/cancel/{name}")
        assert (await rig.until(name))["status"] == ("cancelled" if number % 2 else "failed")
    await rig.until_ready()
    await rig.submit("next", draw("next"))
    assert (await rig.until("next"))["status"] == "completed"
    assert rig.is_running and (await rig.get("/health"))[0] == 200


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_of_several_engines_only_the_stuck_one_is_replaced(tmp_path: Path) -> None:
    async with a_rig(tmp_path, constants={"supervision": {"cancel_grace_seconds": 3}}, ENGINES="2") as rig:
        await rig.start()

        async def engines() -> list[dict[str, Any]]:
            backends: list[dict[str, Any]] = (await rig.get("/health"))[1]["backends"]
            return backends

        async def are_both_up() -> bool:
            return [engine["state"] for engine in await engines()] == ["up", "up"]

        await rig.until_ready()
        await until(are_both_up)
        await rig.submit("stuck", stick("stuck", "swallow"))
        await rig.until_begun("stuck")
        await rig.post("/cancel/stuck")
        assert sorted(engine["state"] for engine in await engines()) == ["stopping", "up"]
        pids = {engine["pid"]: engine["state"] for engine in await engines()}
        names = [f"job-{number}" for number in range(6)]
        for name in names:
            await rig.submit(name, draw(name, seconds=0.1))
        for name in names:
            assert (await rig.until(name))["status"] == "completed"
            assert rig.num_begun(name) == 1
        await until(are_both_up)
        after = await engines()
        kept = next(pid for pid, state in pids.items() if state == "up")
        assert kept in {engine["pid"] for engine in after}
        assert sum(sum(engine["restarts"].values()) for engine in after) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_hostile_pattern_fails_its_node_and_the_engine_goes_on(rig: Rig) -> None:
    hostile = {"string": "a" * 60 + "!", "regex_pattern": "(a|a)*$", "case_insensitive": False}
    workflow = {
        "7": {"class_type": "RegexMatch", "inputs": {**hostile, "multiline": False, "dotall": False}},
        "8": {"class_type": "PreviewAny", "inputs": {"source": ["7", 0]}},
    }
    await rig.start()
    await rig.until_ready()
    before = rig.engine_pid
    await rig.submit("regex", workflow)
    await asyncio.sleep(1)
    assert (await rig.get("/ready"))[0] == 200
    error = (await rig.until("regex"))["error"]
    assert (error["status"], error["code"], error["node_id"]) == (500, "node_failed", "7")
    assert "took longer than 10 s" in error["message"]
    assert rig.engine_pid == before and await losses_of(rig) == {}
