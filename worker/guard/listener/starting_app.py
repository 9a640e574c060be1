"""StartingApp: an ASGI application that answers probes while the one it stands for is imported and built.

The server listens at once. `/live` is answered, `/ready` refused with the reason, and every other request waits for
the application, as it would have waited for a server that listens later.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import structlog

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

RETRY_SECONDS: Final = 5
LIVE: Final = "/live"
READY: Final = "/ready"
PROBE_METHODS: Final = frozenset({"GET", "HEAD"})
STARTING: Final = "The engine is starting"
SERVICE_RESTART: Final = 1012

log = structlog.get_logger("startup")


class StartingApp:
    """The application that `build` makes in its context, entered on the event loop once the server listens.

    `on_failure` is called on the event loop with the error that ended the building, and the server should stop.
    """

    def __init__(
        self,
        build: Callable[[], AbstractAsyncContextManager[ASGIApp]],
        on_failure: Callable[[Exception], object],
    ) -> None:
        self._build = build
        self._on_failure = on_failure
        self._stack = AsyncExitStack()
        self._app: ASGIApp | None = None
        self._building: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is not None and scope["type"] != "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._keep_alive(receive, send)
        elif scope["type"] == "http" and scope["method"] in PROBE_METHODS and scope["path"] in (LIVE, READY):
            await _answer_probe(scope, send)
        else:
            await self._wait_and_pass_on(scope, receive, send)

    async def _keep_alive(self, receive: Receive, send: Send) -> None:
        await receive()
        self._building = asyncio.create_task(self._begin(), name="application-start")
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._building  # what began to start must be closed
        await self._stack.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _begin(self) -> None:
        try:
            self._app = await self._stack.enter_async_context(self._build())
        except Exception as error:  # noqa: BLE001 - start of the application
            self._on_failure(error)

    async def _wait_and_pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._building is not None:
            await asyncio.shield(self._building)
        if self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _answer(send, 503, {"status": "not ready", "reason": "The worker could not start"})
        else:
            await receive()
            await send({"type": "websocket.close", "code": SERVICE_RESTART})


async def _answer_probe(scope: Scope, send: Send) -> None:
    if scope["path"] == LIVE:
        await _answer(send, 200, {"status": "alive"}, has_body=scope["method"] == "GET")
    else:
        await _answer(send, 503, {"status": "not ready", "reason": STARTING}, has_body=scope["method"] == "GET")


async def _answer(send: Send, status: int, body: dict[str, Any], *, has_body: bool = True) -> None:
    content = json.dumps(body, separators=(",", ":")).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if status == 503:
        headers.append((b"retry-after", str(RETRY_SECONDS).encode()))
    begin: Message = {"type": "http.response.start", "status": status, "headers": headers}
    await send(begin)
    await send({"type": "http.response.body", "body": content if has_body else b""})
