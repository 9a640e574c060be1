"""A gateway as a process, which can be killed and started again, with a token for the workers that ask it for jobs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from darkroom.worker.engines.supervisor import free_port
from tests.worker.running_front import until


class GatewayServer:
    """A gateway of this broker and database."""

    def __init__(self, folder: Path, broker_url: str, database_url: str, **names: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.token = ""
        self.log = folder / f"gateway-{self.port}.log"
        self._names = {"BROKER_URL": broker_url, "DATABASE_URL": database_url, **names}
        self._process: asyncio.subprocess.Process | None = None

    @property
    def settings(self) -> dict[str, str]:
        """Settings of a worker that takes its jobs."""
        return {"gateway_url": self.url, "worker_token": self.token}

    async def start(self) -> None:
        """Start it, wait until it is ready, and make the workers' token the first time."""
        with self.log.open("a") as output:
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "darkroom.worker", "gateway", "--port", str(self.port),
                env={**os.environ, **self._names}, stdout=output, stderr=output,
            )  # fmt: skip
        async with self.client() as http:

            async def is_ready() -> bool:
                assert process.returncode is None, self.log.read_text()
                with contextlib.suppress(httpx.TransportError):
                    return (await http.get("/ready")).status_code == 200
                return False

            await until(is_ready, 180)
            if not self.token:
                self.token = await self.new_token(f"workers-{self.port}")

    async def new_token(self, name: str) -> str:
        """Return the secret of a new worker token."""
        async with self.client() as http:
            made = await http.post("/api/v1/worker-tokens", json={"name": name})
            assert made.status_code == 201, made.text
            return str(made.json()["token"])

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=60, trust_env=False)

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def stop(self) -> None:
        """Kill it and wait for its end."""
        self.kill()
        if self._process is not None:
            await self._process.wait()


@contextlib.asynccontextmanager
async def gateway_server(
    folder: Path, broker_url: str, database_url: str, **names: str
) -> AsyncIterator[GatewayServer]:
    server = GatewayServer(folder, broker_url, database_url, **names)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()
