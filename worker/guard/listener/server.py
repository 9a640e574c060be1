"""GuardedServer: uvicorn's server with every connection counted before anything else is done for it.

We accept connections ourselves, so that each is counted before its TLS handshake, which has a time limit of its own,
and so that each handshake uses the newest certificate.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from typing import Any, Final

import structlog
import uvicorn
from starlette.types import ASGIApp

from darkroom.worker.guard.listener.certificate import Certificate
from darkroom.worker.guard.listener.connections import Connection, ConnectionTable
from darkroom.worker.guard.listener.errors import CannotListen
from darkroom.worker.guard.listener.protocol import REPLY_STALL_SECONDS, GuardedProtocol

ACCEPTS_AT_ONCE: Final = 64
PAUSE_SECONDS: Final = 0.1
HANDSHAKE_SECONDS: Final = 15.0
KEEP_ALIVE_PROBE_SECONDS: Final = 60
NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = structlog.get_logger("listener")


class Listener:
    """Acceptor of one listening socket's connections, with the methods of asyncio's servers that uvicorn calls."""

    def __init__(self, listening: socket.socket, server: GuardedServer) -> None:
        listening.setblocking(False)
        listening.listen(server.config.backlog)
        self.sockets = (listening,)
        self._socket = listening
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._greeting: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Stop accepting; handshakes under way finish."""
        if not self._is_closed:
            self._is_closed = True
            if self._pause is not None:
                self._pause.cancel()
            self._loop.remove_reader(self._socket)
            self._socket.close()
            for task in self._greeting:
                task.cancel()

    async def wait_closed(self) -> None:
        """Wait until no handshake is under way."""
        while self._greeting:
            await asyncio.wait(set(self._greeting))

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                client, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                self._wait_for_room(error)
                return
            self._admit(client, str(address[0]))

    def _admit(self, client: socket.socket, host: str) -> None:
        connection = self._server.table.admit(host)
        if connection is None:
            client.close()
            return
        task = self._loop.create_task(self._greet(client, connection))
        connection.held_by(task.cancel)
        self._greeting.add(task)
        task.add_done_callback(self._greeting.discard)

    async def _greet(self, client: socket.socket, connection: Connection) -> None:
        """Create a connection's protocol, after its handshake where there is TLS."""
        server = self._server
        try:
            set_options(client)
            if server.certificate is None:
                await self._loop.connect_accepted_socket(lambda: server.protocol_for(connection), client)
                return
            await self._loop.connect_accepted_socket(
                lambda: server.protocol_for(connection),
                client,
                ssl=server.certificate.context(),
                ssl_handshake_timeout=min(HANDSHAKE_SECONDS, server.table.limits.head_seconds),
            )
        except (OSError, asyncio.CancelledError):  # not TLS, too slow, disconnected, or replaced by another client
            server.table.release(connection)
            client.close()

    def _wait_for_room(self, error: OSError) -> None:
        log.error("connections not accepted", reason=error.strerror, connections=self._server.table.num_connections)
        self._loop.remove_reader(self._socket)
        self._pause = self._loop.call_later(PAUSE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._socket, self._accept)


def set_options(client: socket.socket) -> None:
    """Configure a client's socket: send small replies at once, and detect a client that has disappeared."""
    client.setblocking(False)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_PROBE_SECONDS)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(REPLY_STALL_SECONDS * 1000))


class GuardedServer(uvicorn.Server):
    """Server of an application for connections that the table admits, over TLS where there is a certificate.

    `config` must not name certificate files: uvicorn would create its own context from them.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        table: ConnectionTable,
        busy: ASGIApp,
        certificate: Certificate | None = None,
    ) -> None:
        super().__init__(config)
        self.table = table
        self.certificate = certificate
        self._busy = busy

    def request_exit(self) -> None:
        """Stop serving as soon as the replies under way are sent."""
        self.should_exit = True

    def protocol_for(self, connection: Connection) -> GuardedProtocol:
        """Return the protocol of a new connection."""
        return GuardedProtocol(self.config, self.server_state, self.lifespan.state, connection, self.table, self._busy)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take the address, start the application, then listen. Raises CannotListen before anything is started."""
        listening = sockets if sockets is not None else await bind(self.config.host, self.config.port)
        await super().startup(sockets=[])
        self.started = False  # until we listen
        if self.should_exit:  # the application could not start
            for item in listening:
                item.close()
            return
        try:
            listeners: list[Any] = [Listener(item, self) for item in listening]
        except OSError as error:  # bound by two at once: the other one listened first
            await self.lifespan.shutdown()
            raise CannotListen(self.config.host, self.config.port, error) from error
        self.servers = listeners
        self.started = True
        port = listening[0].getsockname()[1]
        scheme = "http" if self.certificate is None else "https"
        log.info("server started", host=self.config.host, port=port, scheme=scheme)


async def bind(host: str, port: int) -> Sequence[socket.socket]:
    """Return a socket for every address of a host, none of them listening yet. Raises CannotListen."""
    loop = asyncio.get_running_loop()
    bound: list[socket.socket] = []
    try:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            item = socket.socket(family, kind, protocol)
            bound.append(item)
            item.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                item.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            item.bind(address)
    except OSError as error:
        for item in bound:
            item.close()
        raise CannotListen(host, port, error) from error
    return bound
