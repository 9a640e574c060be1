"""Hundreds of clients at one moment: each is served, or told when to come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.fakes import FakeEngine, draw
from tests.worker.running_front import RunningFront, running_front

NUM_CLIENTS = 150


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    folder = tmp_path / "engine"
    folder.mkdir()
    async with FakeEngine(folder) as engine:
        yield engine


async def all_at_once(front: RunningFront, route: str) -> list[httpx.Response]:
    limits = httpx.Limits(max_connections=NUM_CLIENTS)
    async with httpx.AsyncClient(base_url=front.url, timeout=60, trust_env=False, limits=limits) as http:
        bodies = [{"input": {"request_id": f"job-{n}", "workflow_json": draw(str(n))}} for n in range(NUM_CLIENTS)]
        return await asyncio.gather(*(http.post(route, json=body) for body in bodies))


@pytest.mark.parametrize("route", ["/generate", "/generate/sync"])
async def test_with_room_for_all_none_is_refused_and_none_fails(tmp_path: Path, engine: FakeEngine, route: str) -> None:
    async with running_front(tmp_path, engine, max_queue_size=2000) as front:
        front.front.services.engines.pool.any_client.facts.forget_object_info()
        engine.num_described = 0
        replies = await all_at_once(front, route)
        assert engine.num_described == 1  # and not once for each of them
        assert {reply.status_code for reply in replies} == {200 if route == "/generate/sync" else 202}
        for reply in replies:
            await front.until(reply.json()["id"], "completed")
        assert len(engine.runs) == len(set(engine.runs)) == NUM_CLIENTS


async def test_without_room_the_others_learn_when_to_come_back(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, max_queue_size=10) as front:
        replies = await all_at_once(front, "/generate")
        refused = [reply for reply in replies if reply.status_code != 202]
        assert {reply.status_code for reply in refused} == {503}
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
        taken = [reply.json()["id"] for reply in replies if reply.status_code == 202]
        assert len(taken) >= 10
        for job_id in taken:
            await front.until(job_id, "completed")
        again = await front.http.post("/generate", json={"input": {"workflow_json": draw("later")}})
        assert again.status_code == 202
