"""The engine hangs, stops answering, dies in every run or at every start: jobs end, and the next ones are drawn."""

from __future__ import annotations

import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.nodes import die, draw, hang
from tests.faults.rig import Rig, a_rig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with a_rig(tmp_path) as rig:
        yield rig


async def draws_again(rig: Rig) -> None:
    await rig.until_ready()
    await rig.submit("next", draw("next"))
    assert (await rig.until("next"))["status"] == "completed"
    assert (await rig.get("/health"))[0] == 200


async def test_a_node_that_never_returns_is_not_tried_again_and_costs_no_other_job(rig: Rig) -> None:
    await rig.start(STALL_TIMEOUT="1.5")
    await rig.until_ready()
    await rig.submit("stuck", hang("stuck"))
    await rig.submit("behind", draw("behind"))
    failed = await rig.until("stuck")
    assert (failed["status"], failed["error"]["status"], failed["error"]["code"]) == ("failed", 500, "engine_hung")
    assert (failed["error"]["reason"], failed["error"]["node_id"]) == ("hung", "1")
    assert rig.num_begun("stuck") == 1
    assert (await rig.until("behind"))["status"] == "completed"
    assert rig.num_begun("behind") == 1
    await draws_again(rig)


async def test_a_node_that_never_returns_within_its_time_limit_frees_the_engine(rig: Rig) -> None:
    await rig.start(JOB_TIMEOUT="0.5", STALL_TIMEOUT="2")
    await rig.until_ready()
    await rig.submit("stuck", hang("stuck"))
    ended = await rig.until("stuck")
    assert (ended["status"], ended["error"]["status"]) == ("timeout", 504)
    assert rig.num_begun("stuck") == 1
    await draws_again(rig)


async def test_a_node_that_never_returns_can_be_cancelled_and_frees_the_engine(rig: Rig) -> None:
    await rig.start(STALL_TIMEOUT="2")
    await rig.until_ready()
    await rig.submit("stuck", hang("stuck"))
    await rig.until_begun("stuck")
    assert (await rig.post("/cancel/stuck"))[1]["status"] == "cancelled"
    await draws_again(rig)


async def test_an_engine_that_stops_answering_is_replaced_and_its_job_not_drawn_again(rig: Rig) -> None:
    await rig.start(constants={"supervision": {"silence_seconds": 5}})
    await rig.until_ready()
    await rig.submit("running", draw("running", seconds=1.0))
    await rig.until_begun("running")
    stopped = rig.engine_pid
    rig.kill_process(stopped, signal.SIGSTOP)
    failed = await rig.until("running")
    assert (failed["status"], failed["error"]["code"], failed["error"]["reason"]) == (
        "failed",
        "engine_hung",
        "unresponsive",
    )
    assert rig.num_begun("running") == 1
    await rig.until_ready()
    assert rig.engine_pid != stopped
    await draws_again(rig)


async def test_an_engine_that_only_pauses_goes_on_with_its_job(rig: Rig) -> None:
    await rig.start()
    await rig.until_ready()
    await rig.submit("running", draw("running", seconds=1.0))
    await rig.until_begun("running")
    paused = rig.engine_pid
    rig.kill_process(paused, signal.SIGSTOP)
    rig.kill_process(paused, signal.SIGCONT)
    assert (await rig.until("running"))["status"] == "completed"
    assert rig.num_begun("running") == 1
    assert rig.engine_pid == paused


async def test_a_job_that_takes_the_engine_with_it_is_tried_twice_and_costs_no_other_job(rig: Rig) -> None:
    await rig.start()
    await rig.until_ready()
    await rig.submit("deadly", die("deadly"))
    await rig.submit("behind", draw("behind"))
    failed = await rig.until("deadly")
    assert (failed["status"], failed["error"]["status"]) == ("failed", 502)
    assert rig.num_begun("deadly") == 2
    assert (await rig.until("behind"))["status"] == "completed"
    await draws_again(rig)


async def test_a_job_goes_on_whose_engine_and_front_are_killed_by_others_again_and_again(rig: Rig) -> None:
    await rig.start()
    await rig.until_ready()
    await rig.submit("unlucky", draw("unlucky", seconds=2.0))
    for number in range(1, 4):
        await rig.until_begun("unlucky", number)
        rig.kill_engine()
    for number in range(4, 6):
        await rig.until_begun("unlucky", number)
        await rig.kill_front()
        await rig.start()
    await rig.until_ready()
    ended = await rig.until("unlucky")
    assert ended["status"] == "completed", ended
    assert rig.num_begun("unlucky") == 6
    await draws_again(rig)


async def test_what_waits_when_the_engine_dies_at_every_start_is_drawn_by_a_front_whose_engine_starts(rig: Rig) -> None:
    await rig.start(constants={"supervision": {"max_restarts": 2}}, DRAIN_TIMEOUT="0.5")
    await rig.until_ready()
    await rig.submit("running", draw("running", seconds=5.0))
    await rig.submit("waiting", draw("waiting"))
    await rig.until_begun("running")
    output = rig.base / "output"
    shutil.rmtree(output)
    output.touch()  # no engine starts without its folder
    rig.kill_engine()
    assert await rig.until_dead() != 0
    assert "BACKEND_UNRECOVERABLE" in rig.log.read_text()

    output.unlink()
    await rig.start()
    await rig.until_ready()
    for job_id in ("running", "waiting"):
        assert (await rig.until(job_id))["status"] == "completed"
