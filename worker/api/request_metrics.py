"""ASGI middleware that counts and times requests by their route."""

from __future__ import annotations

import time
from collections.abc import Iterable

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from worker.observe.http_metrics import HttpMetrics

NO_REPLY = 499  # the client left before a reply began
BROKEN = 500


class RequestMetrics:
    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and record its status and duration."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, codes = time.monotonic(), [NO_REPLY]

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                codes.append(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except Exception:
            codes.append(BROKEN)
            raise
        finally:
            self._metrics.answered(scope["method"], route_of(scope), codes[-1], time.monotonic() - began)


def route_of(scope: Scope) -> str | None:
    """Return the template of the route that took a request; None where none did."""
    path = getattr(scope.get("route"), "path", None)
    return str(path) if path else None


def expect_routes(metrics: HttpMetrics, routes: Iterable[BaseRoute]) -> None:
    """Make the series of every route, with the codes that it declares."""
    for route in routes:
        if isinstance(route, APIRoute):
            codes = [route.status_code or 200, *(int(code) for code in route.responses if str(code).isdigit())]
            for method in sorted(route.methods or ()):
                metrics.expect(method, route.path, dict.fromkeys(codes))
