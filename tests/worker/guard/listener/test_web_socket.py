"""A WebSocket whose client reads nothing: its connection ends, and is no longer counted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.websockets import WebSocket
from uvicorn import Config
from uvicorn.server import ServerState

from darkroom.worker.guard.listener.web_socket import OPTIONS, GuardedWebSocket

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class HastyWebSocket(GuardedWebSocket):
    stall_seconds = 0.05


@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_client_that_does_not_read_is_aborted(has_ended: bool) -> None:
    lost = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        await socket.send_bytes(bytes(32 * 1024 * 1024))  # more than the sockets' own buffers
        if not has_ended:
            await lost.wait()

    seconds = 600.0 if has_ended else 0.05
    config = Config(app, ws_ping_interval=seconds, ws_ping_timeout=seconds, log_config=None, **OPTIONS)
    config.load()

    def protocol() -> GuardedWebSocket:
        made = HastyWebSocket(config, ServerState(), {})
        made.on_lost = lost.set
        return made

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    _, writer = await asyncio.open_connection(host, port, limit=1024)
    try:
        writer.write(HANDSHAKE)
        await asyncio.wait_for(lost.wait(), 60)
    finally:
        writer.close()
        server.close()
