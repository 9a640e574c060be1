"""ASGI middleware that continues the trace of a request, with a span where spans are exported."""

from __future__ import annotations

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from darkroom.worker.api.noted_reply import NotedReply, route_of
from darkroom.worker.observe.tracing import HEADER, Attribute, Tracer

TRACE_SCOPE = "darkroom.traceparent"
QUIET = frozenset({"/live", "/ready", "/health", "/metrics"})
"""Probes, which would make most of the spans."""


class RequestTracing:
    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on within a span."""
        if scope["type"] != "http" or scope["path"] in QUIET:
            await self._app(scope, receive, send)
            return
        reply = NotedReply()
        parent = Headers(scope=scope).get(HEADER, "")
        span = self._tracer.start(scope["method"], parent, {"http.request.method": scope["method"]}, "server")
        scope[TRACE_SCOPE] = span.traceparent
        try:
            await reply.run(self._app, scope, receive, send)
        finally:
            code, route = reply.status, route_of(scope)
            about: dict[str, Attribute] = {"http.response.status_code": code, "http.route": route or ""}
            if route is not None:
                span.rename(f"{scope['method']} {route}")
            span.end(about, error=str(code) if code >= 500 else "")


def traceparent_of(request: Request) -> str:
    """Return the context for what a request causes; empty without one."""
    return str(request.scope.get(TRACE_SCOPE, ""))
