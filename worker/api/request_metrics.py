"""ASGI middleware that counts and times requests by their route."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Receive, Scope, Send

from darkroom.worker.api.noted_reply import NotedReply, route_of
from darkroom.worker.observe.http_metrics import HttpMetrics


class RequestMetrics:
    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and record its status and duration."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, reply = time.monotonic(), NotedReply()
        try:
            await reply.run(self._app, scope, receive, send)
        finally:
            self._metrics.answered(scope["method"], route_of(scope), reply.status, time.monotonic() - began)
