"""The reply on a connection that is over a limit of connections and kept for probes alone."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from darkroom.worker.api.results import refuse
from darkroom.worker.errors import TooManyConnections


async def busy(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer any request with 503."""
    error = TooManyConnections("connections: too many at once; only /live, /ready and /health are answered")
    await refuse(error)(scope, receive, send)
