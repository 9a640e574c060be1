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
from darkroom.worker.guard.listener.connections import ConnectionTable
from darkroom.worker.settings.environment import load_settings
from tests.worker.running_front import ServerWithoutSignals, until


@contextlib.asynccontextmanager
async def running_gateway(broker_url: str, database_url: str, **changes: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a gateway that is ready."""
    given = {"broker_url": broker_url, "database_url": database_url, **changes}
    settings = load_settings(env_file=None, **given).settings
    config = uvicorn.Config(
        create_gateway_app(build_services(settings)), port=0, log_config=None, access_log=False, ws="none",
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = ServerWithoutSignals(config, ConnectionTable(settings.connections, frozenset()), busy)
    serving = asyncio.create_task(server.serve())

    async def is_started() -> bool:
        return server.started

    await until(is_started)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        try:
            yield http
        finally:
            await http.aclose()
            server.should_exit = True
            await serving
