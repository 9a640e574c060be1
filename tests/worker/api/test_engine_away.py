"""Requests while no engine answers: one of ours comes back, so its jobs wait on disk; a foreign one may not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.fakes import FakeEngine, draw, paint
from tests.worker.running_front import RunningFront, running_front, until


@pytest.fixture
async def own(front: RunningFront) -> AsyncIterator[RunningFront]:
    """A front that treats its engine as its own."""
    front.front.services.engines.pool._give_up_seconds = None
    for client in front.front.services.engines.pool.clients:
        client.presence.is_supervised = True
    yield front
    front.engine.is_down = False


async def take_away(front: RunningFront) -> None:
    front.engine.is_down = True

    async def is_gone() -> bool:
        return not front.front.services.engines.pool.clients_up

    await until(is_gone)


async def submit(front: RunningFront, name: str, workflow: dict[str, object]) -> httpx.Response:
    body = {"input": {"request_id": name, "workflow_json": workflow}}
    return await front.http.post("/generate", json=body)


async def test_while_our_engine_restarts_jobs_are_accepted_and_wait(own: RunningFront) -> None:
    await take_away(own)
    assert (await submit(own, "waits", draw())).status_code == 202  # though no engine comes before the answer
    sync = asyncio.create_task(own.sync(draw("other")))
    await asyncio.sleep(0.3)
    assert not sync.done() and own.engine.runs == []
    own.engine.is_down = False
    assert (await own.until("waits", "completed"))["timings"]["wait_ms"] > 0
    assert (await sync).status_code == 200


async def test_a_job_sent_in_the_moment_in_which_our_engine_dies_is_accepted_and_waits(own: RunningFront) -> None:
    own.engine.is_down = True  # which nobody has noticed
    assert own.front.services.engines.pool.clients_up
    assert (await submit(own, "at-once", draw())).status_code == 202
    assert (await own.http.post("/generate/batch", json={"inputs": [{"workflow_json": draw("b")}]})).status_code == 202
    other = asyncio.create_task(own.sync(draw("other")))
    own.engine.is_down = False
    await own.until("at-once", "completed")
    assert (await other).status_code == 200


async def test_a_job_sent_while_a_node_holds_our_engines_interpreter_is_accepted(
    own: RunningFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("darkroom.worker.engines.client.presence.PATIENCE_SECONDS", 0.05)
    own.front._forget_choices()  # so that the engine is asked
    own.engine.is_hung = True
    assert (await submit(own, "waits", draw())).status_code == 202
    own.engine.is_hung = False
    await own.until("waits", "completed")


async def test_what_is_known_of_our_engine_answers_while_it_is_away(own: RunningFront) -> None:
    await take_away(own)
    for path in ("/convert", "/plan"):
        answer = await own.http.post(path, json={"workflow_json": draw()})
        assert answer.status_code == 200, answer.text


async def test_what_the_last_engine_would_refuse_is_decided_by_the_next_one(
    own: RunningFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    await take_away(own)
    bad = asyncio.create_task(submit(own, "bad", {"1": {"class_type": "Nothing", "inputs": {}}}))
    file = asyncio.create_task(submit(own, "file", paint(image="new.png")))
    await asyncio.sleep(0.3)
    assert not bad.done() and not file.done()
    own.engine.is_down = False
    assert (await bad).status_code == (await file).status_code == 422
    await take_away(own)
    monkeypatch.setattr("darkroom.worker.api.job_making.ENGINE_WAIT_SECONDS", 0.1)
    assert (await submit(own, "late", paint(image="new.png"))).status_code == 202  # the engine decides at its beginning


async def test_a_foreign_engine_that_is_gone_is_said_to_be_gone_at_once(
    tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "darkroom.worker.api.job_making.ENGINE_WAIT_SECONDS", 600.0
    )  # longer than the client waits for its answer
    async with running_front(tmp_path, engine) as front:
        for waits_for_notice in (False, True):
            front.engine.is_down = True
            if waits_for_notice:
                await take_away(front)
            refused = await submit(front, "lost", draw())
            assert (refused.status_code, refused.json()["error"]["code"]) == (502, "engine_unreachable")
            assert "does not start" in refused.json()["message"] and "restart" not in refused.json()["message"]
