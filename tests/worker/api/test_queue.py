"""Priorities and the queue as clients see them, over real HTTP."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from darkroom.contract.graph.cost import UNIT_COST
from darkroom.worker.app.application import create_app
from tests.fakes import FakeEngine, draw, wait
from tests.worker.running_front import RunningFront, running_front, until


async def send(front: RunningFront, name: str, workflow: dict[str, Any], **fields: Any) -> httpx.Response:
    body = {"input": {"workflow_json": workflow, "request_id": name, **fields}}
    return await front.http.post("/generate", json=body)


async def fill_the_engine(front: RunningFront) -> None:
    """One prompt that runs and one that waits inside the engine: whatever comes now waits in the front."""
    for name in ("running", "handed"):
        await send(front, name, wait())
    await front.until_message("running", "Progress")

    async def is_handed_over() -> bool:
        return front.engine._pending == ["handed-1"]

    await until(is_handed_over)


async def let_go(front: RunningFront) -> None:
    for name in ("running", "handed"):
        await front.http.post(f"/cancel/{name}")


async def test_waiting_jobs_go_by_priority_and_then_by_arrival(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine) as front:
        await fill_the_engine(front)
        for name, priority in (("low", -3), ("usual", 0), ("usual2", 0), ("high", 7), ("highest", 10)):
            assert (await send(front, name, draw(), priority=priority)).status_code == 202
        info = (await front.http.get("/queue-info")).json()
        names = [entry["id"] for entry in info["jobs"]]
        assert names == ["running", "handed", "highest", "high", "usual", "usual2", "low"]
        assert [entry["priority"] for entry in info["jobs"]] == [0, 0, 10, 7, 0, 0, -3]
        await let_go(front)
        await front.until("low", "completed")
        assert [run.removesuffix("-1") for run in engine.runs] == names


async def test_priorities_outlive_a_restart(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine) as front:
        await fill_the_engine(front)
        for name, priority in (("low", -3), ("usual", 0), ("high", 7)):
            await send(front, name, draw(), priority=priority)
    async with running_front(tmp_path, engine) as front:
        await let_go(front)
        await front.until("low", "completed")
        made = [run.removesuffix("-1") for run in engine.runs if not run.startswith(("running", "handed"))]
        assert made == ["high", "usual", "low"]


async def test_a_priority_out_of_range_is_422_with_what_is_allowed(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine) as front:
        for priority in (11, -11, 1.5, "first", True):
            response = await send(front, "x", draw(), priority=priority)
            (problem,) = response.json()["error"]["problems"]
            assert (response.status_code, problem["field"]) == (422, "input.priority")
        assert (await send(front, "x", draw(), priority=11)).json()["error"]["problems"][0]["allowed"] == {"le": 10}


async def test_waits_are_estimated_from_measured_runs(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine) as front:
        assert (await front.http.get("/queue-info")).json()["estimated_wait_seconds"] == 0
        began = time.monotonic()
        await asyncio.gather(*(front.sync(wait(0.3)) for _ in range(3)))
        elapsed_seconds = time.monotonic() - began
        await fill_the_engine(front)
        await send(front, "third", draw())
        info = (await front.http.get("/queue-info")).json()
        # what waited for its turn is no part of a run: three jobs of 0.3 s each, one after the other, are a third of it
        assert 0.3 <= info["seconds_per_job"] < elapsed_seconds / 2
        running, handed, third = info["jobs"]
        assert running["estimated_wait_time"] == 0
        assert third["estimated_wait_time"] == pytest.approx(
            handed["estimated_wait_time"] + info["seconds_per_job"], abs=0.02
        )
        waits = info["estimated_wait_seconds_by_priority"]
        assert waits["10"] < waits["0"] == waits["-10"] == info["estimated_wait_seconds"]
        await let_go(front)


async def test_only_who_may_send_jobs_sees_those_of_others(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, api_keys="hush") as front:
        outside = httpx.ASGITransport(create_app(front.front.services), client=("203.0.113.9", 1))
        async with httpx.AsyncClient(transport=outside, base_url="http://worker") as stranger:
            assert "jobs" not in (await stranger.get("/queue-info")).json()
            key = {"Authorization": "Bearer hush"}
            assert (await stranger.get("/queue-info", headers=key)).json()["jobs"] == []


async def test_an_estimated_wait_over_the_limit_is_429_but_not_for_a_priority_that_would_wait_less(
    tmp_path: Path, engine: FakeEngine
) -> None:
    async with running_front(tmp_path, engine, max_queue_time=2500) as front:
        front.front.services.jobs.run_clock.add(seconds=1000.0, cost=UNIT_COST)
        await fill_the_engine(front)
        assert (await send(front, "third", draw(), priority=5)).status_code == 202
        refused = await send(front, "late", draw())
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.json()["error"]["estimated_wait_seconds"] > 2500
        assert (await send(front, "urgent", draw(), priority=6)).status_code == 202
        await let_go(front)
