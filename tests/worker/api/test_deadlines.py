"""Deadlines and budgets of requests at one worker: refused where its queue, speed and price say that it is too late."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fakes import FakeEngine, draw, wait
from tests.worker.running_front import running_front


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
