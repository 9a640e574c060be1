"""Previews in the streams of a job: for requests that ask for them."""

from __future__ import annotations

import base64
from typing import Any

from tests.fakes import steps
from tests.worker.api.test_stream import Event, read
from tests.worker.running_front import RunningFront


def shown(events: list[Event]) -> list[str]:
    previews = [event.data["preview"] for event in events if "preview" in event.data]
    assert all(preview["mimetype"] == "image/jpeg" and preview["node_id"] == "2" for preview in previews)
    return [base64.b64decode(preview["data"]).decode() for preview in previews]


def body(**fields: Any) -> dict[str, Any]:
    return {"input": {"workflow_json": steps(4, hold=2), **fields}}


async def test_a_stream_shows_the_unfinished_image_to_a_request_that_asks(front: RunningFront) -> None:
    asked = body(request_id="seen", previews=True)
    before = await read(front, "/generate/stream", until_percent=58, json=asked)
    assert shown(before)[-1] == "image 2"
    front.engine.go_on.set()
    after = await read(front, "/stream/seen")
    assert after[-1].data["result"]["status"] == "completed"
    assert shown(await read(front, "/stream/seen")) == []  # it has ended
    result = (await front.http.get("/result/seen")).json()
    assert "warnings" not in result


async def test_nobody_gets_previews_unasked(front: RunningFront) -> None:
    front.engine.go_on.set()
    assert shown(await read(front, "/generate/stream", json=body())) == []


async def test_previews_is_true_or_false(front: RunningFront) -> None:
    refused = await front.http.post("/generate/stream", json=body(previews="often"))
    assert (refused.status_code, refused.json()["error"]["problems"][0]["field"]) == (422, "input.previews")
