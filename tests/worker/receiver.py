"""A receiver of webhooks: a real HTTP server that keeps what it is sent."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from aiohttp import web


class Receiver:
    """`calls` are headers and body of what came; it answers with `statuses`, the last one again and again."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, str], bytes]] = []
        self.statuses = [200]
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        self.calls.append(({name.lower(): value for name, value in request.headers.items()}, await request.read()))
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return web.Response(status=status, text="planted-words of the receiver")


@contextlib.asynccontextmanager
async def running_receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/hook", receiver.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield receiver
    await runner.cleanup()
