"""Streams of events as a client sees them: over real HTTP, broken off and taken up again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from darkroom.worker.api import stream as stream_module
from tests.fakes import FakeEngine, draw, fail, steps, wait
from tests.worker.running_front import RunningFront, running_front, until

STATES = ["queued", "pending", "processing", "generating", "generated", "completed", "final_result"]


@dataclass(frozen=True, slots=True)
class Event:
    id: int
    data: dict[str, Any]


async def events_of(response: httpx.Response) -> AsyncIterator[Event]:
    event_id = -1
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            event_id = int(line[4:])
        elif line.startswith("data: "):
            yield Event(event_id, json.loads(line[6:]))


async def read(front: RunningFront, path: str, until_percent: float = 1000.0, **arguments: Any) -> list[Event]:
    """The events until the per cent is reached, where the client breaks off, or to the end."""
    method = "POST" if "json" in arguments else "GET"
    found = []
    async with front.http.stream(method, path, **arguments) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        async for event in events_of(response):
            found.append(event)
            if event.data.get("progress", {}).get("percent", 0) >= until_percent:
                break
    return found


def assert_only_forward(events: list[Event]) -> None:
    assert [event.id for event in events] == sorted(event.id for event in events)
    places = [STATES.index(event.data["status"]) for event in events]
    assert places == sorted(places)
    percents = [event.data["progress"]["percent"] for event in events if "progress" in event.data]
    assert percents == sorted(percents)


async def test_a_stream_reports_per_cent_by_node_and_step_and_ends_with_the_result(front: RunningFront) -> None:
    front.engine.go_on.set()
    events = await read(front, "/generate/stream", json={"input": {"workflow_json": steps(4), "request_id": "s"}})
    assert_only_forward(events)
    assert events[0].data["status"] == "queued"
    assert events[-1].data["status"] == "final_result"
    assert events[-1].data["result"]["status"] == "completed"
    assert events[-1].data["result"] == (await front.http.get("/result/s")).json() | {
        "output": events[-1].data["result"]["output"]
    }


async def test_a_snapshot_has_the_wrappers_fields_and_says_which_node_is_how_far(front: RunningFront) -> None:
    body = {"input": {"workflow_json": steps(4, hold=2), "request_id": "held"}}
    events = await read(front, "/generate/stream", until_percent=58, json=body)
    data = events[-1].data
    assert {"request_id", "status", "message", "timestamp", "elapsed_time", "queue_info", "queue_position"} <= set(data)
    assert set(data["queue_position"]) == {"current_queue", "position", "queue_size", "estimated_wait_time"}
    # one unit for Draw, five for Steps with its four steps: one and half of five are done
    percent = round(100 * 3.5 / 6, 2)
    assert data["progress"] == {"percent": percent, "node_id": "2", "node_class": "Steps", "value": 2, "max": 4}
    front.engine.go_on.set()


async def test_a_broken_stream_is_taken_up_with_a_snapshot_and_never_goes_back(front: RunningFront) -> None:
    body = {"input": {"workflow_json": steps(4, hold=2), "request_id": "cut"}}
    before = await read(front, "/generate/stream", until_percent=50, json=body)
    again = {"Last-Event-ID": str(before[-1].id)}
    by_get = asyncio.create_task(read(front, "/stream/cut", headers=again))
    by_post = asyncio.create_task(read(front, "/generate/stream", json=body, headers=again))

    async def both_watch() -> bool:
        return front.front.services.jobs.pipeline.feed.num_watching("cut") == 2

    await until(both_watch)
    await asyncio.sleep(0.1)
    front.engine.go_on.set()
    for after in (await by_get, await by_post):
        assert after[0].data["status"] == "generating"
        assert after[0].data["progress"]["percent"] >= before[-1].data["progress"]["percent"]
        assert_only_forward([*before, *after])
        assert after[-1].data["result"]["status"] == "completed"
    assert front.engine.runs == ["cut-1"]


async def test_the_stream_of_a_finished_job_is_its_final_result(front: RunningFront) -> None:
    done = (await front.sync(draw(), request_id="done")).json()
    (event,) = await read(front, "/stream/done", headers={"Last-Event-ID": "1"})
    assert (event.data["status"], event.data["result"]["output"][0]["filename"]) == (
        "final_result",
        done["output"][0]["filename"],
    )
    (replayed,) = await read(front, "/generate/stream", json={"input": {"workflow_json": draw(), "request_id": "done"}})
    assert replayed.id == event.id


async def test_a_failed_job_ends_its_stream_with_the_failure(front: RunningFront) -> None:
    events = await read(front, "/generate/stream", json={"input": {"workflow_json": fail()}})
    assert events[-1].data["result"]["status"] == "failed"
    assert events[-1].data["result"]["error"]["node_id"] == "1"


async def test_an_unknown_id_has_no_stream(front: RunningFront) -> None:
    response = await front.http.get("/stream/nobody")
    assert (response.status_code, response.json()["message"]) == (404, "Request ID not found")


async def test_a_refused_request_is_answered_with_its_status_and_no_stream(front: RunningFront) -> None:
    response = await front.http.post("/generate/stream", json={"input": {"workflow_json": draw(size=99)}})
    assert (response.status_code, response.json()["error"]["problems"][0]["field"]) == (422, "size")


async def test_a_retry_takes_back_neither_status_nor_per_cent(front: RunningFront) -> None:
    body = {"input": {"workflow_json": steps(4, hold=2), "request_id": "twice"}}
    streaming = asyncio.create_task(read(front, "/generate/stream", json=body))
    await front.until_message("twice", "Progress: 5")
    front.engine.forget_everything()
    await front.engine.drop_sockets()

    async def is_sent_again() -> bool:
        return front.engine.pending == ["twice-2"]

    await until(is_sent_again)
    front.engine.go_on.set()
    events = await streaming
    assert_only_forward(events)
    assert {event.data["attempt"] for event in events if "attempt" in event.data} == {1, 2}


async def test_after_a_crash_no_stream_shows_an_older_state(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine) as front:
        body = {"input": {"workflow_json": wait(), "request_id": "crash"}}
        before = await read(front, "/generate/stream", until_percent=20, json=body)
        row = await front.front.store.stored("crash")
        assert row is not None
        assert (row.state.value, row.seq) == (before[-1].data["status"], before[-1].id)


async def test_a_quiet_stream_is_kept_alive_by_comments(front: RunningFront, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "KEEP_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(stream_module, "LOOK_SECONDS", 0.05)
    await front.http.post("/generate", json={"input": {"workflow_json": wait(), "request_id": "quiet"}})
    await front.until_message("quiet", "Progress")
    async with front.http.stream("GET", "/stream/quiet") as response:
        async for line in response.aiter_lines():
            if line.startswith(":"):
                break
        else:
            pytest.fail("the stream ended without a comment")
    await front.http.post("/cancel/quiet")


async def test_a_stream_that_is_left_leaves_nobody_watching(front: RunningFront) -> None:
    body = {"input": {"workflow_json": wait(), "request_id": "left"}}
    await read(front, "/generate/stream", until_percent=20, json=body)

    async def nobody_watches() -> bool:
        return front.front.services.jobs.pipeline.feed.num_watching("left") == 0

    await until(nobody_watches)
    assert (await front.http.get("/result/left")).json()["status"] == "generating"
    await front.http.post("/cancel/left")
