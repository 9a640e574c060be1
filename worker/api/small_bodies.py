"""Small size limit on the body of every request whose route does not read it with limits of its own.

FastAPI reads and parses a declared body before any other part of a route runs, the check of the caller included.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from worker.api.results import refuse
from worker.errors import RequestRejected, RequestTooLarge
from worker.guard.json_scan import check_json
from worker.settings.listener import JsonLimits

MAX_SMALL_BYTES: Final = 64 * 1024
BODY_METHODS: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
LARGE_ROUTES: Final = frozenset(
    {"/generate", "/generate/sync", "/generate/stream", "/generate/batch", "/convert", "/run", "/runsync"}
    | {"/v1/images/generations", "/v1/images/edits"}
)
LARGE_BELOW: Final = ("/session/", "/workflows/", "/api/v2/", "/comfy/")


class SmallBodies:
    """ASGI middleware that reads small bodies whole, hands them on, and refuses larger ones."""

    def __init__(self, app: ASGIApp, limits: JsonLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on once its body is known to be small."""
        if scope["type"] != "http" or scope["method"] not in BODY_METHODS or _reads_its_own(scope["path"]):
            await self._app(scope, receive, send)
            return
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":  # the client has disconnected
                return
            body += message.get("body", b"")
            if len(body) > MAX_SMALL_BYTES or not message.get("more_body", False):
                break
        try:
            if len(body) > MAX_SMALL_BYTES:
                problem = f"The body is too large; got {len(body)} bytes or more, expected at most {MAX_SMALL_BYTES}"
                raise RequestTooLarge(problem, limit_bytes=MAX_SMALL_BYTES)
            check_json(body, self._limits)
        except (RequestTooLarge, RequestRejected) as error:
            await refuse(error)(scope, receive, send)
            return
        await self._app(scope, _Replay(bytes(body), receive), send)


class _Replay:
    """ASGI `receive` that replays a body, then passes on further messages of the client."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._first: Message | None = {"type": "http.request", "body": body, "more_body": False}
        self._receive = receive

    async def __call__(self) -> Message:
        """Return the next message."""
        if self._first is None:
            return await self._receive()
        message, self._first = self._first, None
        return message


def _reads_its_own(path: str) -> bool:
    return path in LARGE_ROUTES or path.startswith(LARGE_BELOW)
