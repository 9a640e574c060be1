"""Prompts that go on with a job's prompt: found by a mark, awaited, joined, and withdrawn with it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.continuations import FIRST_PROMPT, continuations_in, is_unfinished, joined
from darkroom.worker.engines.outcome import RunOutcome, read_outcome
from darkroom.worker.errors import JobCancelled, JobTimedOut, NodeFailed
from tests.fakes import FakeEngine, draw, parts


def outcome(outputs: dict[str, Any], cached: tuple[str, ...] = ()) -> RunOutcome:
    messages = [["execution_cached", {"nodes": list(cached)}]]
    return read_outcome({"outputs": outputs, "status": {"status_str": "success", "messages": messages}})


def item(prompt_id: str, first: str | None = None) -> list[Any]:
    return [0, prompt_id, {}, {} if first is None else {FIRST_PROMPT: first}, []]


def test_what_each_part_shows_comes_in_their_order_and_cached_outputs_once() -> None:
    found = joined(
        [
            outcome({"save": {"images": ["a"]}, "still": {"images": ["s"]}, "video": {"unfinished_batch": [True]}}),
            outcome({"save": {"images": ["b"]}, "still": {"images": ["s"]}, "video": {"gifs": ["v"]}}, ("still",)),
        ]
    )
    assert found.outputs == {
        "save": {"images": ["a", "b"]},
        "still": {"images": ["s"]},
        "video": {"unfinished_batch": [True], "gifs": ["v"]},
    }
    assert found.entry["outputs"] == found.outputs


def test_the_first_part_that_did_not_succeed_is_the_outcome() -> None:
    failed = RunOutcome({}, {}, error=NodeFailed("it broke"))
    assert joined([outcome({"1": {"images": ["a"]}}), failed]) is failed
    alone = outcome({"1": {"images": ["a"]}})
    assert joined([alone]) is alone


def test_only_prompts_that_bear_the_mark_and_are_new_go_on() -> None:
    queue = {"queue_running": [item("c", "a"), item("x"), item("y", "z")], "queue_pending": [item("d", "a"), ["odd"]]}
    history = {"a": {"prompt": item("a", "a")}, "b": {"prompt": item("b", "a")}, "odd": {"prompt": None}, "odder": None}
    assert continuations_in(queue, history, ["a"], {"a"}) == ["b", "c", "d"]
    assert continuations_in(queue, history, ["a"], {"a", "b", "c", "d"}) == []
    assert is_unfinished(outcome({"1": {"unfinished_batch": [True]}}))
    assert not is_unfinished(outcome({"1": {"images": ["a"]}}))


@pytest.fixture
async def engine(tmp_path: Path) -> Any:
    async with FakeEngine(tmp_path) as engine:
        yield engine


@pytest.fixture
async def client(engine: FakeEngine) -> Any:
    client = EngineClient(engine.url)
    await client.start()
    yield client
    await client.close()


def ignore(_kind: str, _data: object) -> None:
    pass


async def test_a_run_ends_with_the_last_of_its_parts(client: EngineClient, engine: FakeEngine) -> None:
    kinds: list[str] = []
    found = await client.runner.run(parts(3), "p-1", lambda kind, _: kinds.append(kind), timeout_seconds=60)
    assert [image["filename"] for image in found.outputs["1"]["images"]] == [f"{name}_1.png" for name in engine.runs]
    assert len(engine.runs) == 3 and kinds.count("execution_start") >= 1
    assert len(client.runs) == 0


async def test_a_run_that_is_taken_up_again_finds_its_parts(client: EngineClient, engine: FakeEngine) -> None:
    await client.runner.run(parts(3), "p-1", ignore, timeout_seconds=60)
    again = await client.runner.run(parts(3), "p-1", ignore, timeout_seconds=60, is_there=True)
    assert len(again.outputs["1"]["images"]) == 3 and len(engine.runs) == 3


async def test_a_cancelled_run_withdraws_the_part_that_waits(client: EngineClient, engine: FakeEngine) -> None:
    engine.hold_parts.clear()
    running = asyncio.create_task(client.runner.run(parts(100), "p-1", ignore, timeout_seconds=60))
    async with asyncio.timeout(60):
        await engine.part_begun.wait()
    running.cancel()
    engine.hold_parts.set()  # the part that runs is interrupted, but queues the next one before
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(60):
        while client.stops.is_any_open or not engine.is_idle:  # noqa: ASYNC110 - of the engine
            await asyncio.sleep(0.02)
    assert len(engine.runs) < 100
    assert (await client.runner.run(draw(), "p-2", ignore, timeout_seconds=60)).outputs


async def test_the_time_of_a_run_is_that_of_all_its_parts(client: EngineClient, engine: FakeEngine) -> None:
    with pytest.raises(JobTimedOut, match="longer than 0.5 s"):
        await client.runner.run(parts(100_000), "p-1", ignore, timeout_seconds=0.5)
    async with asyncio.timeout(60):
        while not engine.is_idle:  # noqa: ASYNC110 - of the engine
            await asyncio.sleep(0.02)


async def test_a_part_that_another_client_took_away_ends_the_job_as_cancelled(
    client: EngineClient, engine: FakeEngine
) -> None:
    engine.drops_parts = True
    with pytest.raises(JobCancelled):
        await client.runner.run(parts(3), "p-1", ignore, timeout_seconds=60)
