"""PlainListener: a second server in the front's loop, without TLS, for `/session/end` alone.

Programs on the machine end sessions through it without the instance's certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from darkroom.worker.guard.listener.connections import ConnectionTable
from darkroom.worker.guard.listener.server import GuardedServer


class _Server(GuardedServer):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the first server."""
        yield


class PlainListener:
    def __init__(self, app: Any, host: str, port: int, connections: ConnectionTable, busy: ASGIApp) -> None:
        self._app = app
        self._connections = connections
        self._busy = busy
        self._address = (host, port)
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self.port = port

    async def start(self) -> None:
        """Start to listen. Raises OSError when the port is taken."""
        listening = socket.create_server(self._address, family=_family(self._address[0]))
        self.port = listening.getsockname()[1]
        config = uvicorn.Config(
            self._app, access_log=False, log_config=None, server_header=False, lifespan="off", ws="none"
        )
        self._server = _Server(config, self._connections, self._busy)
        self._serving = asyncio.create_task(self._server.serve([listening]), name="plain-listener")

    async def stop(self) -> None:
        if self._server is not None and self._serving is not None:
            self._server.request_exit()
            await self._serving


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
