"""GuardedProtocol: uvicorn's HTTP protocol with limits on the cost of one connection.

A request's head has a time limit, a maximum size and a maximum number of lines. Its body has a maximum pause and a
minimum rate while we are ready to read it. The number of pipelined requests is limited. A reply that its client does
not read is aborted. After a refusal the rest of a body is discarded for some seconds, so that a client that sends first
and reads then gets its reply.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from darkroom.worker.guard.listener.connections import Connection, ConnectionTable, Slot
from darkroom.worker.guard.listener.web_socket import GuardedWebSocket

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from uvicorn import Config
    from uvicorn.server import ServerState

PROBE_PATHS: Final = frozenset({"/live", "/ready", "/health"})
PROBE_SECONDS: Final = 5.0
MAX_HEADERS: Final = 128
MAX_REQUESTS_AHEAD: Final = 16
LINGER_SECONDS: Final = 10.0
HOST: Final = re.compile(rb"[^\s,/\\?#@\x00-\x20\x7f]*")
REPLY_STALL_SECONDS: Final = 300.0
LOOKS_PER_TIMEOUT: Final = 4

REASONS: Final = {
    400: "The request is not valid HTTP",
    408: "The request took too long to arrive",
    431: "The head of the request is too large",
}


class GuardedProtocol(HttpToolsProtocol):
    """One connection of a client. `busy` answers requests that a connection for probes may not make."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        connection: Connection,
        table: ConnectionTable,
        busy: ASGIApp,
    ) -> None:
        super().__init__(config, server_state, app_state)
        limits = table.limits
        self._connection = connection
        self._table = table
        self._busy: Any = busy
        self._real_app = self.app
        self._max_head_bytes = limits.max_head_bytes
        self._body_idle_seconds = limits.body_idle_seconds
        self._body_bytes_per_second = limits.body_bytes_per_second
        self._head_seconds = limits.head_seconds if connection.slot is Slot.FULL else PROBE_SECONDS
        self.timeout_keep_alive = limits.keep_alive_seconds  # type: ignore[assignment]  # integer seconds in uvicorn
        self._is_over = False  # refused: later data is ignored
        self._is_in_head = True
        self._num_head_bytes = 0
        self._num_body_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._body_began = self._body_moved = 0.0
        self._num_bytes_seen = 0

    # the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for a request."""
        super().connection_made(transport)
        self._connection.held_by(transport.abort)
        self._set_timer(self._head_seconds, self._head_timed_out)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection's slot."""
        self._table.release(self._connection)
        self._is_over = True
        self._stop_timer()
        self._stop_stall_timer()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Parse the next bytes of a request, and set a time limit for the part that is missing."""
        if self._is_over:
            return
        if self._is_in_head:
            self._num_head_bytes += len(data)
        try:
            super().data_received(data)
        except httptools.HttpParserError:  # pragma: no cover - answered above
            self._refuse(400)
        if self._is_over or self.transport.is_closing():
            return
        if self._is_in_head:
            if self._num_head_bytes > self._max_head_bytes:
                self._refuse(431)
            elif self._num_head_bytes and self._timer is None:
                self._set_timer(self._head_seconds, self._head_timed_out)
        elif self._timer is None:
            self._watch_body()

    def pause_writing(self) -> None:
        """Start the timer for a client that does not read."""
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(REPLY_STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timer for a client that does not read."""
        self._stop_stall_timer()
        super().resume_writing()

    # callbacks of the parser

    def on_message_begin(self) -> None:
        """Start a request."""
        super().on_message_begin()
        self._is_in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a line of the head; trailers after a chunked body are ignored."""
        if self._is_in_head and not self._is_over:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Pass the request to the application, unless its head is too large."""
        if self._is_over:
            return
        num_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if num_bytes > self._max_head_bytes or len(self.headers) > MAX_HEADERS:
            self._refuse(431)
            return
        if len(self.pipeline) >= MAX_REQUESTS_AHEAD or not self._has_valid_host():
            self._refuse(400)
            return
        self._is_in_head = False
        self._num_head_bytes = self._num_body_bytes = 0
        self._stop_timer()
        self._connection.begin_request()
        if self._connection.slot is Slot.PROBE:
            path = self.url.partition(b"?")[0].decode("latin-1")
            is_probe = self.parser.get_method() in (b"GET", b"HEAD") and path in PROBE_PATHS
            self.app = self._real_app if is_probe else self._busy
        super().on_headers_complete()
        if self._connection.slot is Slot.PROBE and self.cycle is not None:
            self.cycle.keep_alive = False

    def _has_valid_host(self) -> bool:
        """Return True for one Host header, which HTTP/1.0 may leave out (RFC 9112, section 3.2).

        Of two a proxy may go by one and the worker by the other.
        """
        hosts = [value for name, value in self.headers if name == b"host"]
        if not hosts:
            return self.parser.get_http_version() in ("1.0", "0.9")
        return len(hosts) == 1 and HOST.fullmatch(hosts[0]) is not None

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body on."""
        if self._is_over:
            return
        self._num_body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request; the next data is the head of another."""
        if self._is_over:
            return
        self._is_in_head = True
        self._num_head_bytes = 0
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of a body that is discarded."""
        super().on_response_complete()
        if self._is_over or self.transport.is_closing():
            return
        self._connection.end_request(has_more=bool(self.pipeline))
        if not self._is_in_head:
            self._unset_keepalive_if_required()
            self._set_timer(LINGER_SECONDS, self.transport.abort)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection to the WebSocket protocol, counted as before. One for probes may not have one."""
        if self._is_over:
            return
        self._is_over = True  # for this protocol
        self._stop_timer()
        if self._connection.slot is Slot.PROBE:
            self.transport.abort()
            return
        super().handle_websocket_upgrade()
        protocol = self.transport.get_protocol()
        if isinstance(protocol, GuardedWebSocket):
            protocol.on_lost = partial(self._table.release, self._connection)

    # time limits

    def _head_timed_out(self) -> None:
        self._timer = None
        if self.cycle is not None and not self.cycle.response_complete:  # pipelined: the reply before it comes first
            self._set_timer(self._head_seconds, self._head_timed_out)
        elif self._num_head_bytes:
            self._refuse(408)
        else:
            self.transport.abort()

    def _watch_body(self) -> None:
        self._body_began = self._body_moved = self.loop.time()
        self._num_bytes_seen = self._num_body_bytes = 0
        self._look_later()

    def _look_later(self) -> None:
        self._set_timer(self._body_idle_seconds / LOOKS_PER_TIMEOUT, self._look_at_body)

    def _look_at_body(self) -> None:
        """Refuse a body that stalls or comes too slowly, unless it is our side that does not read."""
        now = self.loop.time()
        if self.flow.read_paused:
            self._watch_body()
            return
        if self._num_body_bytes != self._num_bytes_seen:
            self._num_bytes_seen, self._body_moved = self._num_body_bytes, now
        seconds = now - self._body_began
        is_slow = seconds > self._body_idle_seconds and self._num_body_bytes < seconds * self._body_bytes_per_second
        if is_slow or now - self._body_moved > self._body_idle_seconds:
            self._refuse(408)
        else:
            self._look_later()

    def _set_timer(self, seconds: float, act: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, act)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    # refusals

    def send_400_response(self, msg: str) -> None:
        """Refuse data that is not HTTP, in uvicorn's place."""
        if not self._is_over:
            self._refuse(400)

    def _refuse(self, status: int) -> None:
        """Reply with a status if no reply has begun, and close."""
        self._is_over = True
        self._stop_timer()
        self._unset_keepalive_if_required()
        cycle = self.cycle
        has_begun = cycle is not None and cycle.response_started and not cycle.response_complete
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if has_begun:
            self.transport.abort()
            return
        message = REASONS[status].encode()
        lines = [STATUS_LINE[status], b"content-type: text/plain; charset=utf-8\r\n", b"connection: close\r\n"]
        self.transport.write(b"".join([*lines, b"content-length: %d\r\n\r\n" % len(message), message]))
        self.transport.close()
        self._stall_timer = self._stall_timer or self.loop.call_later(LINGER_SECONDS, self.transport.abort)
