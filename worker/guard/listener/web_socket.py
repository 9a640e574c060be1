"""GuardedWebSocket: uvicorn's WebSocket protocol, whose connection stays counted to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

MAX_MESSAGE_BYTES: Final = 2**20
"""Largest message of a client: a request without images within it; larger ones come by HTTP."""

OPTIONS: Final[dict[str, Any]] = {"ws_max_size": MAX_MESSAGE_BYTES, "ws_per_message_deflate": False}


class GuardedWebSocket(WebSocketsSansIOProtocol):
    """One WebSocket of a client, taken over from its HTTP connection. `on_lost` is called at its end.

    A close waits for the client to read what was sent. One that does not read for `stall_seconds` is aborted.
    """

    on_lost: Callable[[], None] | None = None
    stall_seconds = 300.0
    _stall_timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection's slot."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        if self.on_lost is not None:
            self.on_lost()
        super().connection_lost(exc)

    def keepalive_timeout(self) -> None:
        """Close the connection of a client that answers no ping."""
        super().keepalive_timeout()
        self._abort_later()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """End the connection after the application's last message."""
        super().on_task_complete(task)
        self._abort_later()

    def _abort_later(self) -> None:
        if self._stall_timer is None and not self.disconnected:
            self._stall_timer = self.loop.call_later(self.stall_seconds, self.transport.abort)
