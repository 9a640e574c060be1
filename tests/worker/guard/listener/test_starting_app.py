"""The server while its application is still being built: probes are answered, everything else waits."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from darkroom.worker.guard.listener.starting_app import StartingApp

NOT_TO_LISTEN = ("fastapi", "sqlalchemy", "httpx", "alembic", "botocore", "prometheus_client", "cryptography", "torch")
OURS_NOT_TO_LISTEN = (
    "darkroom.worker.api",
    "darkroom.worker.app.assembly",
    "darkroom.worker.autoscaler",
    "darkroom.worker.engines",
    "modifiers",
    "engine",
)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(f"built {scope['path']}")(scope, receive, send)


class Server:
    """The application's side of a server: its lifespan, and requests to it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.sent: asyncio.Queue[str] = asyncio.Queue()
        self.received: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://worker")

    async def start(self) -> None:
        async def send(message: Message) -> None:
            await self.sent.put(message["type"])

        async def live() -> None:
            await self.app({"type": "lifespan"}, self.received.get, send)

        self.lifespan = asyncio.create_task(live())
        await self.received.put({"type": "lifespan.startup"})
        assert await self.sent.get() == "lifespan.startup.complete"

    async def stop(self) -> None:
        await self.received.put({"type": "lifespan.shutdown"})
        assert await self.sent.get() == "lifespan.shutdown.complete"
        await self.lifespan
        await self.http.aclose()


async def test_probes_are_answered_while_the_rest_waits_and_the_context_is_left_at_the_end() -> None:
    may_go_on, steps = asyncio.Event(), []

    @asynccontextmanager
    async def build() -> AsyncIterator[ASGIApp]:
        await may_go_on.wait()
        steps.append("built")
        yield echo
        steps.append("closed")

    server = Server(StartingApp(build, lambda error: steps.append(str(error))))
    await server.start()
    assert (await server.http.get("/live")).json() == {"status": "alive"}
    assert (await server.http.head("/live")).status_code == 200
    refused = await server.http.get("/ready")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    assert refused.json() == {"status": "not ready", "reason": "The engine is starting"}
    waiting = asyncio.create_task(server.http.get("/health"))
    await asyncio.sleep(0)
    assert not waiting.done()
    may_go_on.set()
    assert (await waiting).text == "built /health"
    assert (await server.http.get("/live")).text == "built /live"
    await server.stop()
    assert steps == ["built", "closed"]


async def test_what_waits_is_refused_when_the_application_cannot_be_built() -> None:
    problems: list[Exception] = []

    @asynccontextmanager
    async def build() -> AsyncIterator[ASGIApp]:
        if not problems:
            raise OSError("no room")
        yield echo

    server = Server(StartingApp(build, problems.append))
    await server.start()
    assert (await server.http.post("/generate", json={})).status_code == 503
    await server.stop()
    assert [str(problem) for problem in problems] == ["no room"]


def test_the_server_listens_before_the_libraries_of_the_front_are_imported() -> None:
    program = "import sys, darkroom.worker.app.serve; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    too_early = [name for name in found if name.startswith(tuple(f"{part}." for part in OURS_NOT_TO_LISTEN))]
    too_early += [name for name in NOT_TO_LISTEN if name in found]
    assert not too_early
