"""A receiver of webhooks: a real HTTP server that keeps what it is sent."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

from tests.served import served


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
    async with served(app) as url:
        receiver.url = f"{url}/hook"
        yield receiver
