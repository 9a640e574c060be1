"""A whole front in the test's event loop: real HTTP server on a free port, real database, a fake engine beside it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import uvicorn

from darkroom.worker.api.busy import busy
from darkroom.worker.app.application import create_app
from darkroom.worker.app.assembly import Front
from darkroom.worker.guard.listener.certificate import Certificate
from darkroom.worker.guard.listener.server import GuardedServer
from darkroom.worker.guard.listener.web_socket import OPTIONS as WEB_SOCKET_OPTIONS
from darkroom.worker.guard.listener.web_socket import GuardedWebSocket
from darkroom.worker.settings.environment import load_settings
from darkroom.worker.settings.platforms import VastTiming
from darkroom.worker.settings.settings import Settings
from tests.fakes import FakeEngine
from tests.worker.adjusted_front import Constants, with_constants
from tests.worker.databases import give_database


class ServerWithoutSignals(GuardedServer):
    """Uvicorn's server for hundreds of short lives: it looks more often whether it is to end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)
        while True:
            if self.should_exit:
                return
            await asyncio.sleep(0.005)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Without the pause of 0.1 s where no request is under way."""
        for _ in range(5):
            if not self.server_state.connections:
                for server in self.servers:
                    server.close()
                await self.lifespan.shutdown()
                return
            await asyncio.sleep(0.001)
        await super().shutdown(sockets)


@dataclass
class RunningFront:
    front: Front
    engine: FakeEngine
    http: httpx.AsyncClient
    url: str

    async def sync(self, workflow: dict[str, Any], **fields: Any) -> httpx.Response:
        return await self.http.post("/generate/sync", json={"input": {"workflow_json": workflow, **fields}})

    async def until(self, job_id: str, *states: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
        """Return the result once its status is one of `states`; `headers` bear the key of the job's owner."""
        async with asyncio.timeout(60):
            while True:
                result: dict[str, Any] = (await self.http.get(f"/result/{job_id}", headers=headers)).json()
                if result["status"] in states:
                    return result
                await asyncio.sleep(0.01)

    async def until_message(self, job_id: str, words: str, headers: dict[str, str] | None = None) -> None:
        """Wait until the job's message begins with `words`; `headers` bear the key of the job's owner."""

        async def says() -> bool:
            message: str = (await self.http.get(f"/result/{job_id}", headers=headers)).json()["message"]
            return message.startswith(words)

        await until(says)


async def until(is_so: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
    """Looks from outside, again and again, until something is so."""
    async with asyncio.timeout(seconds):
        while True:
            if await is_so():
                return
            await asyncio.sleep(0.01)


def settings_for(state: Path, engine_url: str, constants: Constants = MappingProxyType({}), **changes: Any) -> Settings:
    """Return settings with these variables; `constants` are fields of sections that no variable sets."""
    given = {"engine_url": engine_url, "state_directory": state, "benchmark": "off", "drain_timeout": 0.1}
    given["access_log"] = False  # the log of a test is read when it fails
    settings = load_settings(env_file=None, **{**given, "min_free_disk_bytes": 0, **changes}).settings
    return with_constants(settings, constants)


@contextlib.asynccontextmanager
async def running_front(
    folder: Path,
    engine: FakeEngine,
    *,
    waits_until_ready: bool = True,
    vast_timing: VastTiming | None = None,
    **changes: Any,
) -> AsyncIterator[RunningFront]:
    give_database(folder / "state")
    settings = settings_for(folder / "state", engine.url, **changes)
    front, tls = Front(settings, lambda code: None, vast_timing), settings.tls_files()
    app = create_app(front.services, front.lifespan())
    config = uvicorn.Config(
        app,
        port=0,
        log_config=None,
        access_log=False,
        server_header=False,
        ws=GuardedWebSocket,
        **WEB_SOCKET_OPTIONS,
        timeout_graceful_shutdown=1,
    )
    certificate = None if tls is None else Certificate(tls)
    server = ServerWithoutSignals(config, front.services.observation.connections, busy, certificate)
    serving = asyncio.create_task(server.serve())

    async def is_started() -> bool:
        return server.started

    await until(is_started)
    url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as http:

        async def is_ready() -> bool:
            return (await http.get("/ready")).status_code == 200

        if waits_until_ready:
            await until(is_ready)
        try:
            yield RunningFront(front, engine, http, url)
        finally:
            await http.aclose()  # or the server would wait for its connections
            server.should_exit = True
            await serving
