"""Deadlines and budgets of requests at one worker: refused where its queue, speed and price say that it is too late."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.fakes import FakeEngine, draw, wait
from tests.worker.running_front import running_front, until


def body(**fields: Any) -> dict[str, Any]:
    return {"input": {"workflow_json": draw(), **fields}}


async def test_a_request_that_would_be_late_or_too_dear_is_refused_with_what_it_takes(
    tmp_path: Path, engine: FakeEngine
) -> None:
    async with running_front(tmp_path, engine, worker_price_per_hour=3600.0) as front:
        first = await front.http.post("/generate/sync", json=body(deadline=0.001, max_cost=0.0))
        assert first.status_code == 200, "no speed is known yet"
        await front.http.post("/generate/sync", json={"input": {"workflow_json": wait(0.2)}})
        refused = await front.http.post("/generate", json=body(deadline=0.001, max_cost=0.000001))
        assert refused.status_code == 422
        problems = {item["field"]: item for item in refused.json()["error"]["problems"]}
        assert problems["input.deadline"]["allowed"]["minimum"] > 0
        assert problems["input.max_cost"]["allowed"]["minimum"] > 0
        kept = await front.http.post("/generate/sync", json=body(deadline=600, max_cost=600))
        assert kept.status_code == 200


async def test_a_job_that_would_be_late_goes_before_those_that_have_time(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine) as front:
        await front.sync(wait(0.3))  # so that a speed is known
        pace, jobs = front.front.services.jobs.run_clock, front.front.services.jobs.store.jobs
        await front.http.post("/generate", json={"input": {"workflow_json": wait(), "request_id": "runs"}})
        await front.until_message("runs", "Progress")
        for name in ("next", "one", "two"):
            await front.http.post("/generate", json={"input": {"workflow_json": draw(), "request_id": name}})
        running, seconds = jobs["runs"], pace.seconds_of(jobs["one"].cost)

        async def is_over_its_time() -> bool:
            return time.monotonic() - running.began_at > pace.seconds_of(running.cost)

        await until(is_over_its_time)  # from now on the estimates do not change
        wanted = front.front.services.jobs.queue_info.wait_of_a_new_job() + 0.5 * seconds
        late = await front.http.post("/generate", json=body(request_id="late", deadline=wanted))
        assert late.status_code == 202, late.text
        order = [entry["id"] for entry in (await front.http.get("/queue-info")).json()["jobs"]]
        assert order.index("late") < order.index("two"), order
        job = jobs["late"]
        assert job.request.deadline_turn_ms is not None and job.turn_ms == job.request.deadline_turn_ms
        await front.http.post("/cancel/runs")
        assert (await front.until("late", "completed"))["status"] == "completed"
