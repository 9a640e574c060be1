"""A gateway as a process with a Redis and a PostgreSQL of its own, for the benchmarks of gateways."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from pydantic import SecretStr

from benchmark.engine_start import free_port
from darkroom.worker.integrations.redis.streams import RedisBroker
from darkroom.worker.settings.broker import BrokerConfig
from tests.worker.postgres_server import running_postgres
from tests.worker.sources.servers import redis_server

START_SECONDS = 120


@dataclass(frozen=True, slots=True)
class GatewayProcess:
    """A running gateway: its address, its process, a client of its broker, and the addresses of its servers."""

    url: str
    pid: int
    producer: RedisBroker
    broker_url: str
    database_url: str

    def memory_mb(self) -> dict[str, float]:
        """Return its resident memory now and at its most, in MB."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        found = dict(line.split(":", 1) for line in text.splitlines())
        return {name: int(found[key].split()[0]) / 1000 for name, key in (("now", "VmRSS"), ("peak", "VmHWM"))}


@contextlib.asynccontextmanager
async def gateway_process(**settings: str) -> AsyncIterator[GatewayProcess]:
    """Run a gateway with an empty broker and an empty database; `settings` are variables of its environment."""
    with tempfile.TemporaryDirectory() as name, running_postgres() as postgres:
        folder, database_url = Path(name), postgres.url(postgres.new_database())
        async with redis_server(folder / "redis") as redis:
            environment = {"BROKER_URL": redis.url, "DATABASE_URL": database_url, "LOG_LEVEL": "warning", **settings}
            url = f"http://127.0.0.1:{(port := free_port())}"
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "darkroom.worker", "gateway", "--port", str(port),
                env={**os.environ, **environment},
            )  # fmt: skip
            producer = RedisBroker(BrokerConfig(url=SecretStr(redis.url)))
            try:
                await _until_ready(url, process)
                yield GatewayProcess(url, process.pid, producer, redis.url, database_url)
            finally:
                await producer.close()
                if process.returncode is None:
                    process.kill()
                await process.wait()


async def _until_ready(url: str, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(START_SECONDS), httpx.AsyncClient(base_url=url, trust_env=False) as http:
        while True:
            if process.returncode is not None:
                raise RuntimeError(f"the gateway has ended with code {process.returncode}")
            with contextlib.suppress(httpx.TransportError):
                if (await http.get("/ready")).status_code == 200:
                    return
            await asyncio.sleep(0.1)
