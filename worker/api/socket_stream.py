"""WebSockets /generate/stream and /stream/{id}: the events of a job's stream, each a message of JSON.

A message has the event's fields and its `id`. The first message to /generate/stream is the request's body. A refusal is
one message, the result with its `error`, and the close code 4000 and its HTTP status. Browsers cannot set headers of a
WebSocket: their key comes as sub-protocol, `darkroom.key.` and the key in base64url without padding, beside `darkroom`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from fastapi import APIRouter, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import Response
from starlette.types import Message

from darkroom.worker.api.results import check_caller, not_found, refuse, services_of
from darkroom.worker.api.stream import Event, events_of
from darkroom.worker.api.submission import submit
from darkroom.worker.errors import Problem, RequestRejected, WorkerError
from darkroom.worker.jobs.ownership import find_job
from darkroom.worker.json import finite as finite_json

router = APIRouter()

PROTOCOL: Final = "darkroom"
KEY_PREFIX: Final = "darkroom.key."
BODY_SECONDS: Final = 30.0
REFUSED: Final = 4000
"""Added to the HTTP status of a refusal: the first close code that is free for applications."""

Scope = dict[str, Any]


@router.websocket("/generate/stream")
async def generate_stream(socket: WebSocket) -> None:
    """Submit a job, whose request is the first message, and send its changes, the result last."""
    await _accept(socket)
    scope = _http_scope(socket, "POST")
    try:
        check_caller(_request(scope))
        body = await _body(socket)
    except WorkerError as error:
        await _refuse(socket, refuse(error))
        return
    except (TimeoutError, WebSocketDisconnect):
        await _close(socket, 1000)
        return
    request = _request(scope, body)
    submitted = await submit(request)
    if isinstance(submitted, Response):
        await _refuse(socket, submitted)
        return
    admitted, _ = submitted
    request.app.state.sync_waiters.detach(admitted.job)
    await _send_events(socket, events_of(admitted.job, request, is_new=admitted.is_new))


@router.websocket("/stream/{job_id}")
async def stream(socket: WebSocket, job_id: str) -> None:
    """Attach to a job: a snapshot, every change, the result last."""
    await _accept(socket)
    request = _request(_http_scope(socket, "GET"))
    try:
        job = await find_job(services_of(request).jobs.store, job_id, check_caller(request))
    except WorkerError as error:
        await _refuse(socket, refuse(error))
        return
    if job is None:
        await _refuse(socket, not_found(job_id))
        return
    await _send_events(socket, events_of(job, request))


async def _accept(socket: WebSocket) -> None:
    await socket.accept(subprotocol=PROTOCOL if PROTOCOL in socket.scope.get("subprotocols", ()) else None)


async def _body(socket: WebSocket) -> bytes:
    """Return the first message. Raises TimeoutError, WebSocketDisconnect, and RequestRejected for an empty one."""
    async with asyncio.timeout(BODY_SECONDS):
        message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1000))
    body = (message.get("text") or "").encode() or message.get("bytes") or b""
    if not body:
        raise RequestRejected([Problem("expected the request as first message", field="input", type="missing")])
    return body


async def _send_events(socket: WebSocket, events: AsyncIterator[Event | None]) -> None:
    """Send events until the last one, or until the client leaves; its job goes on."""
    sending = asyncio.ensure_future(_send_all(socket, events))
    leaving = asyncio.ensure_future(_until_gone(socket))
    try:
        await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
    except (WebSocketDisconnect, RuntimeError):  # gone in the middle of a message
        return
    finally:
        sending.cancel()
        leaving.cancel()
    await _close(socket, 1000)


async def _send_all(socket: WebSocket, events: AsyncIterator[Event | None]) -> None:
    async for event in events:
        if event is not None:  # pings keep the connection alive
            await socket.send_text(finite_json.dumps({"id": event.id, **event.data}))


async def _until_gone(socket: WebSocket) -> None:
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass


async def _refuse(socket: WebSocket, response: Response) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await socket.send_text(bytes(response.body).decode())
    await _close(socket, REFUSED + response.status_code)


async def _close(socket: WebSocket, code: int) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await socket.close(code)


def _http_scope(socket: WebSocket, method: str) -> Scope:
    """Return the ASGI scope of the HTTP request that stands for a WebSocket, with the key of its sub-protocols."""
    headers = [(name, value) for name, value in socket.scope["headers"] if name != b"content-length"]
    key = next((name for name in socket.scope.get("subprotocols", ()) if name.startswith(KEY_PREFIX)), "")
    if key and not any(name == b"authorization" for name, _ in headers):
        headers.append((b"authorization", b"Bearer " + _decoded(key.removeprefix(KEY_PREFIX))))
    scheme = {"wss": "https"}.get(socket.scope["scheme"], "http")
    headers.append((b"content-type", b"application/json"))
    return {**socket.scope, "type": "http", "method": method, "scheme": scheme, "headers": headers}


def _decoded(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return b"invalid"


def _request(scope: Scope, body: bytes = b"") -> Request:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(scope, receive)
