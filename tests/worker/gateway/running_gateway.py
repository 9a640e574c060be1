"""A gateway in the test's event loop: real HTTP, a real broker and a real database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import uvicorn

from darkroom.worker.api.busy import busy
from darkroom.worker.app.serve_gateway import build_services
from darkroom.worker.gateway.app import create_gateway_app
from darkroom.worker.gateway.routes import GatewayServices
from darkroom.worker.gateway.workers.receipts import GivenJob
from darkroom.worker.guard.listener.connections import ConnectionTable
from darkroom.worker.settings.environment import load_settings
from darkroom.worker.sources.broker import Producer
from tests.worker.running_front import ServerWithoutSignals, until


class LocalGateway:
    """A gateway that can be cut off and started again, with a token for the workers that ask it for jobs."""

    def __init__(self, broker_url: str, database_url: str, **changes: Any) -> None:
        self._given = {"broker_url": broker_url, "database_url": database_url, **changes}
        self._services: GatewayServices | None = None
        self._server: ServerWithoutSignals | None = None
        self._serving: asyncio.Task[None] | None = None
        self.port = 0
        self.url = ""
        self.token = ""

    @property
    def producer(self) -> Producer:
        """Its producer, since it was started last."""
        assert self._services is not None, "it is started"
        return self._services.gateway.producer

    @property
    def settings(self) -> dict[str, str]:
        """Settings of a worker that takes its jobs."""
        return {"gateway_url": self.url, "worker_token": self.token}

    async def start(self) -> None:
        """Start it, the second time on the same port, and wait until it is ready."""
        await self.stop()
        settings = load_settings(env_file=None, **self._given).settings
        self._services = build_services(settings)
        config = uvicorn.Config(
            create_gateway_app(self._services), port=self.port, log_config=None, access_log=False, ws="none",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        server = ServerWithoutSignals(config, ConnectionTable(settings.connections, frozenset()), busy)
        self._server, self._serving = server, asyncio.create_task(server.serve())

        async def is_started() -> bool:
            return server.started

        await until(is_started)
        self.port = server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def make_token(self, name: str) -> None:
        """Make the token of the workers."""
        async with self.client() as http:
            made = await http.post("/api/v1/worker-tokens", json={"name": name})
            assert made.status_code == 201, made.text
            self.token = made.json()["token"]

    async def sealed(self, worker: str, job_id: str, receipt: str) -> str:
        """Return a receipt of a broker as this gateway gives it to a worker."""
        assert self._services is not None, "it is started"
        return (await self._services.desk.sealer()).sealed(worker, GivenJob(job_id, receipt))

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=60, trust_env=False)

    def kill(self) -> None:
        """Cut all connections off and take no more."""
        if self._server is not None:
            for listener in self._server.servers:
                listener.close()
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
            self._server.should_exit = True

    async def stop(self) -> None:
        """End it."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving
            self._server, self._serving = None, None


@contextlib.asynccontextmanager
async def running_gateway(broker_url: str, database_url: str, **changes: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a gateway that is ready."""
    gateway = LocalGateway(broker_url, database_url, **changes)
    await gateway.start()
    async with gateway.client() as http:
        try:
            yield http
        finally:
            await http.aclose()
            await gateway.stop()
