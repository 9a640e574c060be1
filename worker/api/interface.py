"""/comfy/…: ComfyUI's web interface of the engine behind the worker's keys (FRONT_END), by HTTP and WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from fastapi import APIRouter, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import RedirectResponse, Response, StreamingResponse
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from darkroom.worker.api.body_sizes import takes_jobs
from darkroom.worker.api.interface_keys import check_visitor, key_page
from darkroom.worker.api.page_headers import CLOSED_POLICY
from darkroom.worker.api.results import refuse, services_of
from darkroom.worker.engines.interface import EngineInterface
from darkroom.worker.errors import RequestTooLarge, RouteNotFound, ScopeMissing, Unauthorized, WorkerError

router = APIRouter(include_in_schema=False)

PREFIX: Final = "/comfy"
METHODS: Final = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
BODY_METHODS: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
PASSED_IN: Final = (
    *("accept", "accept-language", "content-type", "content-length", "if-modified-since", "if-none-match", "range"),
    *("if-range", "comfy-user"),
)
"""Headers of a request that the engine gets; neither keys nor cookies, nor where the request came from."""

PASSED_OUT: Final = (
    *("content-type", "content-length", "content-disposition", "content-range", "accept-ranges", "cache-control"),
    *("etag", "expires", "last-modified", "location", "allow"),
)
PAGE_POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob: https:; media-src 'self' data: blob: https:; font-src 'self' data:; "
    "connect-src 'self' blob: data: https:; worker-src 'self' blob:; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
"""Content-Security-Policy of the interface, whose package needs scripts within its page."""
REFUSED: Final = 4000


@router.get(PREFIX)
async def without_slash() -> Response:
    """Send a browser to the address below which the interface finds its files."""
    return RedirectResponse("comfy/", status_code=307)


@router.api_route(PREFIX + "/{path:path}", methods=METHODS)
@takes_jobs
async def pass_on(request: Request) -> Response:
    """Pass a request on to the engine. A browser without a key gets the page that asks for one."""
    interface = services_of(request).engines.interface
    if interface is None:
        return refuse(RouteNotFound("FRONT_END is off: ComfyUI's web interface is not served"))
    try:
        check_visitor(request)
    except (Unauthorized, ScopeMissing) as error:
        is_page = request.url.path == PREFIX + "/" and request.method == "GET"
        return key_page(error) if is_page and "text/html" in request.headers.get("accept", "") else refuse(error)
    return await _reply_of(interface, request)


@router.websocket(PREFIX + "/{path:path}")
async def pass_messages(socket: WebSocket) -> None:
    """Pass the messages of a WebSocket on in both directions until either side closes it."""
    request = _as_request(socket)
    interface = services_of(request).engines.interface
    try:
        if interface is None:
            raise RouteNotFound("FRONT_END is off: ComfyUI's web interface is not served")
        check_visitor(request)
        async with interface.web_socket(_target(request)) as engine:
            await socket.accept()
            await _relay(socket, engine)
    except WorkerError as error:
        await socket.accept()
        await _close(socket, REFUSED + refuse(error).status_code)
    except (WebSocketDisconnect, ConnectionClosed):
        pass


async def _reply_of(interface: EngineInterface, request: Request) -> Response:
    headers = {name: request.headers[name] for name in PASSED_IN if name in request.headers}
    limit = services_of(request).requests.bodies.limits.max_bytes
    body = _limited(request, limit) if request.method in BODY_METHODS else None
    context = interface.request(request.method, _target(request), headers, body)
    reply = await context.__aenter__()

    async def pieces() -> AsyncIterator[bytes]:
        try:
            async for piece in reply.pieces:
                yield piece
        finally:
            await context.__aexit__(None, None, None)

    passed = {name: reply.headers[name] for name in PASSED_OUT if name in reply.headers}
    if request.url.path == PREFIX + "/":
        passed["content-security-policy"] = PAGE_POLICY
    elif "xml" in passed.get("content-type", ""):  # SVG among them
        passed["content-security-policy"] = f"{CLOSED_POLICY}; sandbox"
    return StreamingResponse(pieces(), status_code=reply.status, headers=passed)


async def _limited(request: Request, limit_bytes: int) -> AsyncIterator[bytes]:
    num_bytes = 0
    async for piece in request.stream():
        num_bytes += len(piece)
        if num_bytes > limit_bytes:
            message = f"The body is too large; got {num_bytes} bytes or more, expected at most {limit_bytes}"
            raise RequestTooLarge(message, limit_bytes=limit_bytes)
        yield piece


def _target(request: Request) -> str:
    """Return the engine's path and query, encoded as they came: names of user files contain encoded slashes."""
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    path = raw.decode("latin-1").partition("?")[0]
    if not path.startswith(PREFIX + "/"):
        raise RouteNotFound(f"No route {path[:200]}; /docs lists all")
    query = request.scope.get("query_string", b"").decode("latin-1")
    return path.removeprefix(PREFIX) + (f"?{query}" if query else "")


def _as_request(socket: WebSocket) -> Request:
    scheme = {"wss": "https"}.get(socket.scope["scheme"], "http")
    return Request({**socket.scope, "type": "http", "method": "GET", "scheme": scheme})


async def _relay(socket: WebSocket, engine: ClientConnection) -> None:
    directions = {asyncio.ensure_future(_to_engine(socket, engine)), asyncio.ensure_future(_to_client(socket, engine))}
    try:
        done, _ = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    except (WebSocketDisconnect, ConnectionClosed, RuntimeError):  # gone in the middle of a message
        pass
    finally:
        for task in directions:
            task.cancel()
        await asyncio.gather(*directions, return_exceptions=True)
    await _close(socket, 1000)


async def _to_engine(socket: WebSocket, engine: ClientConnection) -> None:
    while (message := await socket.receive())["type"] != "websocket.disconnect":
        text = message.get("text")
        await engine.send(message.get("bytes") or b"" if text is None else text)


async def _to_client(socket: WebSocket, engine: ClientConnection) -> None:
    async for message in engine:
        await (socket.send_text(message) if isinstance(message, str) else socket.send_bytes(message))


async def _close(socket: WebSocket, code: int) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await socket.close(code)
