"""EngineInterface: requests and WebSockets passed on to an engine as they are, for ComfyUI's web interface."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import WebSocketException

from darkroom.worker.engines.address import EngineAddress
from darkroom.worker.engines.http import MAX_ANSWER_BYTES
from darkroom.worker.engines.pool import EnginePool
from darkroom.worker.errors import NotReady
from darkroom.worker.guard.network_errors import cause_of

CONNECT_SECONDS: Final = 5.0
WAIT_SECONDS: Final = 15.0  # for an engine of ours that is being restarted
NOTICE_SECONDS: Final = 1.0  # until the end of its process is noticed
ANSWER_SECONDS: Final = 120.0
"""Seconds without any byte; the check of a large workflow and a preview of a video take that long."""


@dataclass(frozen=True, slots=True)
class InterfaceReply:
    """Reply of the engine. `pieces` is its body, to be read once within the context that gave it."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]


class EngineInterface:
    """The interface of the first engine. Its queue, history and files are this engine's alone."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool
        self._clients: dict[str, httpx.AsyncClient] = {}  # by socket or URL: a socket may move at a restart

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: AsyncIterator[bytes] | None
    ) -> AsyncIterator[InterfaceReply]:
        """Send a request; `path` is in its encoded form, with the query.

        An engine of ours that is being restarted is waited for. Raises NotReady when it stays away.
        """
        try:
            reply = await self._reply(method, path, headers, body)
        except (httpx.ConnectError, FileNotFoundError) as error:  # nothing of the request was sent
            await asyncio.sleep(NOTICE_SECONDS if self._pool.restarts_engines else 0.0)
            if not await self._pool.is_up_within(self._pool.clients[0], WAIT_SECONDS):
                raise _away(error) from None
            try:
                reply = await self._reply(method, path, headers, body)
            except (httpx.TransportError, FileNotFoundError) as again:
                raise _away(again) from None
        except httpx.TransportError as error:
            raise _away(error) from None
        try:
            yield InterfaceReply(reply.status_code, reply.headers, reply.aiter_raw())
        finally:
            await reply.aclose()

    async def _reply(
        self, method: str, path: str, headers: Mapping[str, str], body: AsyncIterator[bytes] | None
    ) -> httpx.Response:
        address = self._address()
        client, sent = self._client(address), {**headers, **address.headers, "accept-encoding": "identity"}
        request = client.build_request(method, f"{address.http_url}{path}", headers=sent, content=body)
        return await client.send(request, stream=True, follow_redirects=False)

    @contextlib.asynccontextmanager
    async def web_socket(self, path: str) -> AsyncIterator[ClientConnection]:
        """Open a WebSocket of the engine. Raises NotReady."""
        address = self._address()
        uri = f"ws{address.http_url.removeprefix('http')}{path}"
        options: dict[str, Any] = {
            "max_size": MAX_ANSWER_BYTES,
            "compression": None,
            "proxy": None,
            "open_timeout": CONNECT_SECONDS,
            "additional_headers": address.headers,
        }
        unix = address.socket
        try:
            opened = await (connect(uri, **options) if unix is None else unix_connect(str(unix.path), uri, **options))
        except (OSError, WebSocketException) as error:
            raise _away(error) from None
        async with opened:
            yield opened

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()

    def _address(self) -> EngineAddress:
        return self._pool.clients[0].address

    def _client(self, address: EngineAddress) -> httpx.AsyncClient:
        unix = None if address.socket is None else str(address.socket.path)
        name = unix or address.url
        if name not in self._clients:
            transport = httpx.AsyncHTTPTransport(uds=unix, retries=1, trust_env=False)
            timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
            self._clients[name] = httpx.AsyncClient(transport=transport, timeout=timeout, trust_env=False)
        return self._clients[name]


def _away(error: Exception) -> NotReady:
    return NotReady(f"The engine does not answer: {cause_of(error)}", retry_after_seconds=2)
