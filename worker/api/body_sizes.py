"""Size of each route's body, declared where the route is: `@takes_jobs` for bodies that carry jobs and files.

FastAPI reads and parses a declared body before any other part of a route runs, the check of the caller included. So
the body of every route is held to MAX_SMALL_BYTES here, unless the route declares that it reads its body itself, with
the limits of `Bodies`. A route for POST, PUT or PATCH that declares neither stops the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, TypeVar

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from darkroom.worker.api.results import refuse
from darkroom.worker.errors import RequestRejected, RequestTooLarge
from darkroom.worker.guard.json_scan import check_json
from darkroom.worker.settings.listener import JsonLimits

MAX_SMALL_BYTES: Final = 64 * 1024
BODY_METHODS: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
DECLARING_METHODS: Final = frozenset({"POST", "PUT", "PATCH"})

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class BodySize(Enum):
    """Largest body of a route."""

    JOBS = "jobs"
    """MAX_REQUEST_BYTES; the route reads its body itself, by `Bodies`."""

    SMALL = "small"
    """MAX_SMALL_BYTES: a few fields, or nothing."""


def takes_jobs(endpoint: Endpoint) -> Endpoint:
    """Declare that a route takes jobs, workflows or files, and reads its body itself up to MAX_REQUEST_BYTES."""
    return _declared(endpoint, BodySize.JOBS)


def takes_little(endpoint: Endpoint) -> Endpoint:
    """Declare that a route takes a few fields or no body at all: MAX_SMALL_BYTES."""
    return _declared(endpoint, BodySize.SMALL)


def _declared(endpoint: Endpoint, size: BodySize) -> Endpoint:
    endpoint.body_size = size  # type: ignore[attr-defined]
    return endpoint


def body_size_of(route: APIRoute) -> BodySize | None:
    """Return the size that a route declares for its body, or None."""
    size = getattr(route.endpoint, "body_size", None)
    return size if isinstance(size, BodySize) else None


class UndeclaredBody(TypeError):
    """A route that takes a body without a declared size, or that lets FastAPI read a large one."""


class SmallBodies:
    """ASGI middleware that reads small bodies whole, hands them on, and refuses larger ones.

    `routes` are those of the application; they may be added to until its first request.
    """

    def __init__(self, app: ASGIApp, limits: JsonLimits, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._limits = limits
        self._routes = routes
        self._large: tuple[APIRoute, ...] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on once its body is known to be small."""
        if scope["type"] != "http" or scope["method"] not in BODY_METHODS or self._takes_jobs(scope):
            await self._app(scope, receive, send)
            return
        body = bytearray()
        try:
            while True:
                message = await receive()
                if message["type"] != "http.request":  # the client has disconnected
                    return
                body += message.get("body", b"")
                if len(body) > MAX_SMALL_BYTES:
                    problem = (
                        f"The body is too large; got {len(body)} bytes or more, expected at most {MAX_SMALL_BYTES}"
                    )
                    raise RequestTooLarge(problem, limit_bytes=MAX_SMALL_BYTES)
                if not message.get("more_body", False):
                    break
            if _may_be_json(scope):
                check_json(body, self._limits)
        except (RequestTooLarge, RequestRejected) as error:
            await refuse(error)(scope, receive, send)
            return
        await self._app(scope, _Replay(bytes(body), receive), send)

    def _takes_jobs(self, scope: Scope) -> bool:
        if self._large is None:
            self._large = tuple(route for route in checked_routes(self._routes) if body_size_of(route) is BodySize.JOBS)
        return any(route.matches(scope)[0] is Match.FULL for route in self._large)


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


def checked_routes(routes: Iterable[BaseRoute]) -> list[APIRoute]:
    """Return the routes that take bodies. Raises UndeclaredBody for one whose size is not declared."""
    found = [route for route in routes if isinstance(route, APIRoute) and BODY_METHODS & (route.methods or set())]
    for route in found:
        size = body_size_of(route)
        if size is None and DECLARING_METHODS & (route.methods or set()):
            raise UndeclaredBody(f"{route.path}: declares no size of its body; expected @takes_jobs or @takes_little")
        if size is BodySize.JOBS and route.body_field is not None:
            raise UndeclaredBody(f"{route.path}: FastAPI would read its large body; expected `request: Request` alone")
    return found


def _may_be_json(scope: Scope) -> bool:
    """Return False for a body that names another content type than JSON; FastAPI does not parse it either."""
    kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"").lower()
    return not kind or b"json" in kind or kind.startswith((b"text/", b"application/x-www-form-urlencoded"))
