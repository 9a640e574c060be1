"""An engine that answers garbage at one route after the other: it ends nothing in the front and blames no caller."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from tests.fakes import FakeEngine, Lie, draw, paint
from tests.worker.running_front import RunningFront, running_front, until

KIB, MIB = 1024, 1024 * 1024
IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


def says(body: bytes, kind: str = "application/json", status: int = 200) -> Lie:
    async def lie(request: web.Request) -> web.StreamResponse:
        if request.path == "/ws":
            return await _on_socket(request, body)
        return web.Response(body=body, headers={"Content-Type": kind}, status=status)

    return lie


async def _on_socket(request: web.Request, body: bytes) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    for _ in range(3):
        with contextlib.suppress(ConnectionError):
            await socket.send_str(body.decode(errors="replace"))
            await socket.send_bytes(body)
    async for message in socket:
        if message.type is WSMsgType.CLOSE:
            break
    return socket


async def cut(request: web.Request) -> web.StreamResponse:
    reply = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
    await reply.prepare(request)
    await reply.write(b'{"system": {')
    assert request.transport is not None
    request.transport.close()
    return reply


async def endless(request: web.Request) -> web.StreamResponse:
    reply = web.StreamResponse(headers={"Content-Type": "application/json"})
    await reply.prepare(request)
    await reply.write(b'{"x": "')
    with contextlib.suppress(ConnectionError):
        while True:
            await reply.write(b"x" * 256 * KIB)
    return reply


async def no_http(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.write(b"220 smtp.example ESMTP\r\n\r\n")
    request.transport.close()
    return web.Response()


NAMES = "system devices queue_running queue_pending prompt_id name error node_errors data"
NAMED: dict[str, Any] = dict.fromkeys(NAMES.split(), 5)
GARBAGE: dict[str, Lie] = {
    "deep lists": says(b"[" * 200_000),
    "deep and closed": says(b'{"a":' * 900 + b"1" + b"}" * 900),
    "a page": says(b"<!DOCTYPE html><html><body>502 Bad Gateway</body></html>", "text/html"),
    "a list": says(b"[]"),
    "null": says(b"null"),
    "nothing": says(b""),
    "a text": says(b'"yes"'),
    "not a number": says(b"NaN"),
    "wrong types": says(json.dumps(NAMED).encode()),
    "wrong types below": says(json.dumps({name: [None, 1e400, [], {"errors": 5}] for name in NAMED}).encode()),
    "many values": says(b"[" + b"[]," * 2_000_000 + b"[]]"),
    "no text": says(b'{"a": "\xff\xfe"}'),
    "a server's error": says(b"<html>nginx</html>", "text/html", 404),
    "cut": cut,
    "endless": endless,
    "no HTTP": no_http,
}
JOBS: dict[str, Callable[[], dict[str, Any]]] = {"POST /upload": lambda: paint(image=IMAGE)}
SHOWN = {"GET /system_stats", "GET /object_info", "GET /queue", "GET /history"}
"""Routes that the front asks by itself, so that readiness shows their answers without any job."""


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_SECONDS_FOREIGN", "LOOK_DOWN_SECONDS"):
        monkeypatch.setattr(f"darkroom.worker.engines.watch.{name}", 0.02)
    for name in ("GIVE_UP_SECONDS", "LOOK_SECONDS", "LOOK_SECONDS_WITHOUT_SOCKET"):
        monkeypatch.setattr(f"darkroom.worker.engines.client.prompt_runner.{name}", 0.05)
    monkeypatch.setattr("darkroom.worker.engines.watch.PROBE_SECONDS", 0.0)
    monkeypatch.setattr("darkroom.worker.engines.client.calls.FAULT_SECONDS", 0.2)
    monkeypatch.setattr("darkroom.worker.engines.pool.FOREIGN_WAIT_SECONDS", 0.1)
    monkeypatch.setattr("darkroom.worker.engines.pool.GIVE_UP_SECONDS", 0.5)
    monkeypatch.setattr("darkroom.worker.engines.pool.LOOK_SECONDS", 0.1)
    monkeypatch.setattr("darkroom.worker.jobs.pipeline.deliver.COLLECT_TRIES", 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "route",
    [
        *("GET /system_stats", "GET /object_info", "GET /queue", "GET /history"),
        *("POST /prompt", "POST /upload", "GET /view", "GET /ws"),
    ],
)
async def test_garbage_at_a_route_ends_nothing_and_blames_nobody(tmp_path: Path, route: str) -> None:
    make = JOBS.get(route, draw)
    limits: dict[str, Any] = {"prompt_max_output_bytes": MIB}
    async with FakeEngine(tmp_path) as engine, running_front(tmp_path, engine, **limits) as front:
        pool = front.front._fleet.pool
        pool._give_up_seconds = 0.5
        num_tasks = len(front.front._tasks)
        for name, lie in GARBAGE.items():
            front.front._forget_choices()
            engine.lie, engine.lies_at = lie, route
            if route == "GET /ws":
                await engine.drop_sockets()
            job = asyncio.create_task(front.sync(make(), request_id=f"job {name}"))
            await asyncio.wait({job}, timeout=1)  # where it is not done, it waits for the engine to come to its senses
            assert (await front.http.get("/live")).status_code == 200
            if route in SHOWN:
                await until_reason(front, name, route)
            engine.lies_at = ""
            told = await asyncio.wait_for(job, 60)
            code = told.json().get("error", {}).get("code")
            assert told.status_code == 200 or told.status_code >= 500 or code == "outputs_too_large", (name, told.text)
            assert code != "internal_error", (name, told.text)
            await until(lambda: _is_ready(front), 10)
            assert len(front.front._tasks) == num_tasks, name
        honest = await front.sync(make(), request_id="honest")
        assert honest.status_code == 200, honest.text


async def until_reason(front: RunningFront, name: str, route: str) -> None:
    async def is_told() -> bool:
        ready = await front.http.get("/ready")
        return ready.status_code == 503 and _names(ready.json()["reason"], route)

    try:
        await until(is_told, 10)
    except TimeoutError:
        pytest.fail(f"{name}: {(await front.http.get('/ready')).text}")


def _names(reason: str, route: str) -> bool:
    return route in reason or route.split()[1] in reason or "Cannot connect" in reason


async def _is_ready(front: RunningFront) -> bool:
    return (await front.http.get("/ready")).status_code == 200


async def test_an_answer_that_was_not_valid_makes_the_worker_not_ready_with_the_route(tmp_path: Path) -> None:
    async with FakeEngine(tmp_path) as engine, running_front(tmp_path, engine) as front:
        engine.lie, engine.lies_at = says(b"<html>"), "POST /prompt"
        told = await front.sync(draw())
        assert (told.status_code, told.json()["error"]["code"]) == (502, "engine_answer_invalid")
        ready = await front.http.get("/ready")
        assert ready.status_code == 503 and "POST /prompt" in ready.json()["reason"]
        engine.lies_at = ""
        assert (await front.sync(draw("again"))).status_code == 200
        assert (await front.http.get("/ready")).status_code == 200
