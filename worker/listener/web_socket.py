"""GuardedWebSocket: uvicorn's WebSocket protocol, whose connection stays counted to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

MAX_MESSAGE_BYTES: Final = 2**20
"""Largest message of a client: a request without pictures within it; larger ones come by HTTP."""

OPTIONS: Final[dict[str, Any]] = {"ws_max_size": MAX_MESSAGE_BYTES, "ws_per_message_deflate": False}


class GuardedWebSocket(WebSocketsSansIOProtocol):
    """One WebSocket of a client, taken over from its HTTP connection. `on_lost` is called at its end."""

    on_lost: Callable[[], None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection's slot."""
        if self.on_lost is not None:
            self.on_lost()
        super().connection_lost(exc)
