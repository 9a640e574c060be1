"""`/ws`: the clients that listen, and what is sent to them.

Each connection has its own outbox and writer, so that a slow client delays nobody; one that falls too far behind is
cut off. Owned by the server's event loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import ClientConnectionResetError, WSCloseCode, WSMsgType, web

from darkroom.engine.server import messages
from darkroom.engine.server.messages import Message

log = logging.getLogger(__name__)

MAX_OUTBOX_BYTES = 256 * 2**20
GOODBYE_SECONDS = 1.0  # for a client that reads nothing, whose goodbye would wait for ever


class Connection:
    """One client. Messages are sent in order; `send` never waits.

    `cut` ends the connection at once: the writer of a client that reads nothing waits in the middle of a message.
    """

    def __init__(
        self,
        sid: str,
        socket: web.WebSocketResponse,
        cut: Callable[[], object],
        max_outbox_bytes: int = MAX_OUTBOX_BYTES,
    ) -> None:
        self.sid = sid
        self.feature_flags: Mapping[str, Any] = {}
        self.unread: frozenset[str] = frozenset()
        self._socket = socket
        self._cut = cut
        self._max_outbox_bytes = max_outbox_bytes
        self._is_cut = False
        self._outbox: deque[str | bytes] = deque()
        self._outbox_bytes = 0
        self._has_mail = asyncio.Event()

    def take_flags(self, flags: Mapping[str, Any]) -> None:
        """Remember what the client can do. `darkroom_unread` lists types of messages that it does without."""
        self.feature_flags = flags
        unread = flags.get("darkroom_unread")
        self.unread = frozenset(str(kind) for kind in unread) if isinstance(unread, list) else frozenset()

    def send(self, payload: str | bytes) -> None:
        if self._is_cut:
            return
        self._outbox.append(payload)
        self._outbox_bytes += len(payload)
        self._has_mail.set()
        if self._outbox_bytes > self._max_outbox_bytes:
            log.warning("disconnecting client %s: %d bytes behind", self.sid, self._outbox_bytes)
            self._outbox.clear()
            self._is_cut = True
            self._cut()

    async def close(self) -> None:
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self._socket.close(code=WSCloseCode.GOING_AWAY, message=b"the engine stops")
        except TimeoutError:
            self._cut()

    async def write_forever(self) -> None:
        """Send what `send` takes in, until the connection breaks."""
        while True:
            await self._has_mail.wait()
            try:
                await self._write_all()
            except (ClientConnectionResetError, ConnectionError, RuntimeError) as error:
                log.debug("client %s is gone: %s", self.sid, error)
                return

    async def _write_all(self) -> None:
        while self._outbox:
            payload = self._outbox.popleft()
            self._outbox_bytes -= len(payload)
            if isinstance(payload, str):
                await self._socket.send_str(payload)
            else:
                await self._socket.send_bytes(payload)
        self._has_mail.clear()


class Clients:
    """Sole holder of the connections, by client id. A second connection of an id replaces the first."""

    def __init__(self) -> None:
        self._connections: dict[str, Connection] = {}

    def add(self, connection: Connection) -> None:
        self._connections[connection.sid] = connection

    def remove(self, connection: Connection) -> None:
        if self._connections.get(connection.sid) is connection:
            del self._connections[connection.sid]

    def connected(self) -> dict[str, Connection]:
        return dict(self._connections)

    def is_listening(self, sid: str | None) -> bool:
        """Return True where messages for `sid` reach any client; None stands for everyone."""
        return bool(self._connections) if sid is None else sid in self._connections

    def is_reading(self, sid: str | None, kind: str) -> bool:
        """Return True where a message of this type for `sid` reaches any client."""
        if sid is None:
            return any(kind not in connection.unread for connection in self._connections.values())
        return sid in self._connections and kind not in self._connections[sid].unread

    def wants_preview_metadata(self, sid: str | None) -> bool:
        return self._has_flag(sid, "supports_preview_metadata")

    def wants_saving(self, sid: str | None) -> bool:
        """Return True for a client that asked for the message that a prompt has no nodes left, as the front does."""
        return self._has_flag(sid, "darkroom_saving")

    def _has_flag(self, sid: str | None, name: str) -> bool:
        connection = None if sid is None else self._connections.get(sid)
        return connection is not None and bool(connection.feature_flags.get(name))

    async def close(self) -> None:
        """Close all connections: the server ends."""
        connections, self._connections = list(self._connections.values()), {}
        await asyncio.gather(*(connection.close() for connection in connections), return_exceptions=True)

    def send(self, message: Message, sid: str | None = None) -> None:
        """Send to one client, or with None to all; dropped when that client is not connected."""
        if self.is_reading(sid, message[0]):
            self.send_encoded(messages.encode(message), sid, message[0])

    def send_encoded(self, payload: str | bytes, sid: str | None = None, kind: str = "") -> None:
        """Send an encoded message, but not to clients that do without its type `kind`."""
        own = None if sid is None else self._connections.get(sid)
        for connection in self._connections.values() if sid is None else [own] if own is not None else []:
            if kind not in connection.unread:
                connection.send(payload)


async def serve_client(
    request: web.Request, clients: Clients, greet: Callable[[str], list[Message]], features: Mapping[str, object]
) -> web.WebSocketResponse:
    """Serve one connection from its first message to its last.

    `greet(sid)` gives what a new client is told; `features` is the answer to its feature flags. Messages are sent
    uncompressed: they are small or JPEG, and deflating them costs more than a node.
    """
    socket = web.WebSocketResponse(compress=False)
    await socket.prepare(request)
    transport = request.transport
    assert transport is not None, "the connection was made a moment ago"
    connection = Connection(request.query.get("clientId") or uuid.uuid4().hex, socket, transport.abort)
    clients.add(connection)
    for message in greet(connection.sid):
        connection.send(messages.encode(message))
    writer = asyncio.create_task(connection.write_forever())
    try:
        await _read_forever(socket, connection, features)
    finally:
        clients.remove(connection)
        writer.cancel()
    return socket


async def _read_forever(socket: web.WebSocketResponse, connection: Connection, features: Mapping[str, object]) -> None:
    is_first = True
    async for incoming in socket:
        if incoming.type is not WSMsgType.TEXT:
            continue
        try:
            data = json.loads(incoming.data)
        except ValueError:
            log.warning("client %s sent text that is no JSON", connection.sid)
            continue
        if is_first and isinstance(data, dict) and data.get("type") == "feature_flags":
            flags = data.get("data")
            connection.take_flags(flags if isinstance(flags, dict) else {})
            connection.send(messages.encode(("feature_flags", features)))
        is_first = False
