"""A gateway as a process with a Redis and a PostgreSQL of its own, for the benchmarks of gateways."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from pydantic import SecretStr

from benchmark.engine_start import free_port
from benchmark.own_servers import postgres_server, redis_server
from darkroom.worker.integrations.redis.streams import RedisBroker
from darkroom.worker.settings.broker import BrokerConfig

START_SECONDS = 120


@dataclass(frozen=True, slots=True)
class GatewayProcess:
    """A running gateway: its address, its process, its database, and a client of its broker."""

    url: str
    pid: int
    producer: RedisBroker
    database_url: str

    def memory_mb(self) -> dict[str, float]:
        """Return its resident memory now and at its most, in MB."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        found = dict(line.split(":", 1) for line in text.splitlines())
        return {name: int(found[key].split()[0]) / 1000 for name, key in (("now", "VmRSS"), ("peak", "VmHWM"))}


@contextlib.asynccontextmanager
async def gateway_process(*, is_broker_left_out: bool = False, **settings: str) -> AsyncIterator[GatewayProcess]:
    """Run a gateway with an empty broker and an empty database; `settings` are variables of its environment.

    `is_broker_left_out`: its database, which counts statements, is the queue.
    """
    with postgres_server(is_counted=is_broker_left_out) as database_url, redis_server() as broker_url:
        environment = {"DATABASE_URL": database_url, "LOG_LEVEL": "warning", **settings}
        environment |= {} if is_broker_left_out else {"BROKER_URL": broker_url}
        url = f"http://127.0.0.1:{(port := free_port())}"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "darkroom.worker", "gateway", "--port", str(port),
            env={**os.environ, **environment},
        )  # fmt: skip
        producer = RedisBroker(BrokerConfig(url=SecretStr(broker_url)))
        try:
            await _until_ready(url, process)
            yield GatewayProcess(url, process.pid, producer, database_url)
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
