"""A request's status, size and route, for middleware that reports them once the reply has ended."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

NO_REPLY = 499  # the client left before a reply began
BROKEN = 500


class NotedReply:
    """The reply to one request: its HTTP status, 499 before one begins, 500 where the app raised; bytes of its body."""

    def __init__(self) -> None:
        self.status = NO_REPLY
        self.num_bytes = 0

    async def run(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on to the app, and record the reply. Raises what the app raises."""

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
            elif message["type"] == "http.response.body":
                self.num_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await app(scope, receive, send_and_note)
        except Exception:
            self.status = BROKEN
            raise


def route_of(scope: Scope) -> str | None:
    """Return the template of the route that took a request; None where none did."""
    path = getattr(scope.get("route"), "path", None)
    return str(path) if path else None
