"""`/internal/logs`: the last lines of the log, and new ones over the WebSocket of clients that ask for them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from datetime import UTC, datetime

from aiohttp import web

from darkroom.engine.server.log_records import TextRecords
from darkroom.engine.server.requests import read_object
from darkroom.engine.server.services import services
from darkroom.engine.server.websocket import Clients

MAX_LINES = 300
TERMINAL_SIZE = {"cols": 200, "rows": 50}

Line = dict[str, str]
"""`t`, its time in ISO 8601, and `m`, the text with its line break."""


class LogTail(logging.Handler):
    """The last records of the log, as text. Records come from any thread, the rest happens on the event loop."""

    def __init__(self, clients: Clients, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.setFormatter(TextRecords())
        self.subscribers: set[str] = set()
        self._clients = clients
        self._loop = loop
        self._lines: deque[Line] = deque(maxlen=MAX_LINES)

    @property
    def lines(self) -> list[Line]:
        return list(self._lines)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, and send it to the subscribers."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat()
        line = {"t": time, "m": f"{self.format(record)}\n"}
        self._lines.append(line)
        if self.subscribers and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._send, line)

    def _send(self, line: Line) -> None:
        for sid in self.subscribers:
            self._clients.send(("logs", {"entries": [line], "size": TERMINAL_SIZE}), sid)


async def get_logs(request: web.Request) -> web.Response:
    return web.json_response("".join(f"{line['t']} - {line['m']}" for line in _tail(request).lines))


async def get_raw_logs(request: web.Request) -> web.Response:
    return web.json_response({"entries": _tail(request).lines, "size": TERMINAL_SIZE})


async def patch_log_subscription(request: web.Request) -> web.Response:
    """Send new lines to the client `clientId`, or with `enabled` false no longer."""
    body, subscribers = await read_object(request), _tail(request).subscribers
    sid = str(body.get("clientId", ""))
    if body.get("enabled"):
        parts = services(request)
        subscribers &= {other for other in subscribers if parts.clients.is_listening(other)}
        subscribers.add(sid)
    else:
        subscribers.discard(sid)
    return web.Response()


def _tail(request: web.Request) -> LogTail:
    return request.app[LOG_TAIL]


LOG_TAIL = web.AppKey("log_tail", LogTail)

ROUTES = (
    web.get("/internal/logs", get_logs),
    web.get("/internal/logs/raw", get_raw_logs),
    web.patch("/internal/logs/subscribe", patch_log_subscription),
)
