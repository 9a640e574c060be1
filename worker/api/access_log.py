"""ASGI middleware that logs every request: method, path, status, duration, size, client and request id.

A refusal for want of a right is in the category `security`. Probes and `/metrics` are logged at level debug. The query
string, which holds signatures of links, is never logged.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.contextvars import clear_contextvars

from darkroom.worker.api.internal_requests import IDENTITY
from darkroom.worker.api.noted_reply import NotedReply
from darkroom.worker.guard.identity.loopback import direct_host

PROBES: Final = frozenset({"/live", "/ready", "/health", "/metrics"})
REFUSED: Final = frozenset({401, 403})
MAX_PATH_LENGTH: Final = 300

log = structlog.get_logger("access")


class AccessLog:
    """Log of requests; its records have what was bound to the log's context on the way: request id, caller, code."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and log it when its reply has been sent."""
        if scope["type"] != "http" or IDENTITY in scope:  # one that the front makes itself is part of another
            await self._app(scope, receive, send)
            return
        reply, began = NotedReply(), time.monotonic()
        clear_contextvars()  # what the request binds is of its own task
        try:
            await reply.run(self._app, scope, receive, send)
        finally:
            shown = {"status": reply.status, "bytes": reply.num_bytes, "seconds": round(time.monotonic() - began, 4)}
            _log_request(scope, shown)


def level_of(path: str, status: int) -> int:
    """Return the level of a request's record."""
    if status in REFUSED or (status >= 500 and status != 503):
        return logging.WARNING
    return logging.DEBUG if path in PROBES else logging.INFO


def _log_request(scope: Scope, shown: dict[str, Any]) -> None:
    path = (scope.get("raw_path") or scope["path"].encode()).decode("ascii", "backslashreplace")[:MAX_PATH_LENGTH]
    client = scope.get("client")
    host = direct_host(client[0] if client else None, (name.decode("latin-1") for name, _ in scope["headers"]))
    log.log(
        level_of(path, shown["status"]),
        "request",
        category="security" if shown["status"] in REFUSED else "request",
        method=scope["method"],
        path=path,
        client=host or "proxy",
        **shown,
    )
