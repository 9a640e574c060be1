"""Streams over WebSockets: the events of server-sent streams, refusals, keys, and connections that stay counted."""

from __future__ import annotations

import base64
import contextlib
import json
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.fakes import FakeEngine, draw, steps
from tests.worker.running_front import RunningFront, running_front, until

Json = dict[str, Any]


def address(front: RunningFront, path: str) -> str:
    return f"ws{front.url.removeprefix('http')}{path}"


async def told(front: RunningFront, path: str, first: object = None, **options: Any) -> tuple[list[Json], int]:
    """The messages of a WebSocket, and the code with which it was closed."""
    found: list[Json] = []
    socket = await connect(address(front, path), proxy=None, **options)
    try:
        if first is not None:
            with contextlib.suppress(ConnectionClosed):  # it may be refused before
                await socket.send(first if isinstance(first, str | bytes) else json.dumps(first))
        while True:
            found.append(json.loads(await socket.recv()))
            if "preview" in found[-1]:
                front.engine.go_on.set()
    except ConnectionClosed as closed:
        return found, closed.rcvd.code if closed.rcvd else 0
    finally:
        await socket.close()


async def test_a_job_is_sent_and_followed_with_previews(front: RunningFront) -> None:
    body = {"input": {"workflow_json": steps(4, hold=2), "request_id": "live", "previews": True}}
    messages, code = await told(front, "/generate/stream", body)
    assert (messages[0]["status"], messages[-1]["status"], code) == ("queued", "final_result", 1000)
    assert messages[-1]["result"]["status"] == "completed"
    assert any("preview" in message for message in messages)
    assert [message["id"] for message in messages] == sorted(message["id"] for message in messages)
    again, code = await told(front, "/stream/live")
    assert ([message["status"] for message in again], code) == (["final_result"], 1000)


async def test_refusals_are_messages_with_their_status_in_the_close_code(front: RunningFront) -> None:
    for path, first, status in (
        ("/generate/stream", {"input": {"workflow_json": draw(size=99)}}, 422),
        ("/generate/stream", "no JSON", 422),
        ("/generate/stream", "", 422),
        ("/stream/nobody", None, 404),
    ):
        messages, code = await told(front, path, first)
        assert (len(messages), code) == (1, 4000 + status), path
        assert messages[0]["error"]["code"]


async def test_a_client_that_leaves_ends_its_connection_and_not_its_job(front: RunningFront) -> None:
    body = {"input": {"workflow_json": steps(4, hold=2), "request_id": "left"}}
    async with connect(address(front, "/generate/stream"), proxy=None) as socket:
        await socket.send(json.dumps(body))
        while "Progress" not in json.loads(await socket.recv())["message"]:
            pass
        assert front.front.services.observation.connections.num_connections >= 1
        held = front.front.services.observation.connections.num_connections

    async def is_released() -> bool:
        return front.front.services.observation.connections.num_connections < held

    await until(is_released)
    front.engine.go_on.set()
    assert (await front.until("left", "completed"))["status"] == "completed"


async def test_keys_come_in_a_header_or_as_a_sub_protocol(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, api_keys="shop:abcdef:submit+read") as front:
        body = {"input": {"workflow_json": draw()}}
        messages, code = await told(front, "/generate/stream", body)
        assert (code, messages[0]["error"]["code"]) == (4401, "unauthorized")
        wrong, right = (base64.urlsafe_b64encode(key).decode().rstrip("=") for key in (b"guess", b"abcdef"))
        for protocol in (f"darkroom.key.{wrong}", "darkroom.key.%"):
            assert (await told(front, "/generate/stream", body, subprotocols=["darkroom", protocol]))[1] == 4401
        options = {"subprotocols": ["darkroom", f"darkroom.key.{right}"]}
        messages, code = await told(front, "/generate/stream", body, **options)
        assert (code, messages[-1]["result"]["status"]) == (1000, "completed")
        header = {"additional_headers": {"Authorization": "Bearer abcdef"}}
        assert (await told(front, f"/stream/{messages[-1]['result']['id']}", **header))[1] == 1000


async def test_a_page_of_another_site_opens_none(front: RunningFront) -> None:
    messages, code = await told(front, "/stream/any", origin="https://evil.example")
    assert (code, messages[0]["error"]["code"]) == (4403, "forbidden")


async def test_a_message_over_the_limit_ends_the_connection(front: RunningFront) -> None:
    messages, code = await told(front, "/generate/stream", "x" * (2**20 + 1))
    assert (messages, code) == ([], 1009)
