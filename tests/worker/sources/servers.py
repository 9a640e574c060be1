"""Real brokers of this machine, started for a test. A test that needs one which is not installed is skipped."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis import asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from darkroom.worker.engines.supervisor import free_port


class RedisServer:
    """A Redis server that writes every change to its folder, and can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def settings(self) -> dict[str, str]:
        return {"broker_url": self.url}

    async def start(self) -> None:
        """Start it and wait until it answers, the first time on another port where its own has been taken meanwhile."""
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("redis-server is not installed")
        async with asyncio.timeout(90):
            while not await self._started(program):
                self.port = free_port()
                self.url = f"redis://127.0.0.1:{self.port}/0"

    async def _started(self, program: str) -> bool:
        """Start it; False when it ends instead of answering."""
        process = self._process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            [program, "--port", str(self.port), "--dir", str(self._folder), "--appendonly", "yes", "--save", "",
             "--appendfsync", "always"],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        client = redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), 0))
        try:
            while process.poll() is None:
                with contextlib.suppress(RedisError, OSError):
                    if await client.ping():
                        return process.poll() is None
                await asyncio.sleep(0.02)
            return False
        finally:
            await client.aclose()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.asynccontextmanager
async def redis_server(folder: Path) -> AsyncIterator[RedisServer]:
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240
    server = RedisServer(folder)
    await server.start()
    try:
        yield server
    finally:
        server.kill()


class NatsServer:
    """A NATS server with JetStream in its folder, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def settings(self) -> dict[str, str]:
        return {"broker_url": self.url}

    async def start(self) -> None:
        program = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
        if program is None:
            pytest.skip("nats-server is not installed (Debian: apt-get install nats-server)")
        self._process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            [program, "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self._folder)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(OSError):
                    reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    greeting = await reader.readline()
                    writer.close()
                    if greeting.startswith(b"INFO"):
                        return
                await asyncio.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def lose_data(self) -> None:
        shutil.rmtree(self._folder)
        self._folder.mkdir()


@contextlib.asynccontextmanager
async def nats_server(folder: Path) -> AsyncIterator[NatsServer]:
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240
    server = NatsServer(folder)
    await server.start()
    try:
        yield server
    finally:
        server.kill()
