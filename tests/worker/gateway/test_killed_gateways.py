"""Gateways as processes, killed while they take jobs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from darkroom.worker.engines.supervisor import free_port
from tests.fakes import FakeEngine, draw
from tests.worker.postgres_server import PostgresServer
from tests.worker.running_front import running_front, until
from tests.worker.sources.servers import redis_server

NUM_JOBS = 40


@contextlib.asynccontextmanager
async def gateway_process(folder: Path, **names: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    port, log = free_port(), folder / "gateway.log"
    with log.open("a") as output:  # noqa: ASYNC230 - the child writes to it
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "darkroom.worker", "gateway", "--port", str(port),
            env={**os.environ, **names}, stdout=output, stderr=output,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:

        async def is_ready() -> bool:
            assert process.returncode is None, log.read_text()
            with contextlib.suppress(httpx.TransportError):
                return (await http.get("/ready")).status_code == 200
            return False

        await until(is_ready)
    try:
        yield process, url
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.slow
async def test_every_job_that_a_killed_gateway_has_acknowledged_ends_once(
    tmp_path: Path, engine: FakeEngine, postgres: PostgresServer
) -> None:
    async with redis_server(tmp_path / "redis") as broker:
        names = {"BROKER_URL": broker.url, "DATABASE_URL": postgres.url(postgres.new_database())}
        async with (
            gateway_process(tmp_path, **names) as (killed, url),
            gateway_process(tmp_path, **names) as (stopped, kept),
        ):
            acknowledged: set[str] = set()

            async def send(http: httpx.AsyncClient, number: int) -> None:
                body = {"input": {"workflow_json": draw(str(number)), "request_id": f"job-{number}"}}
                with contextlib.suppress(httpx.TransportError):
                    if (await http.post("/generate", json=body)).status_code == 202:
                        acknowledged.add(f"job-{number}")

            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
                sending = [asyncio.create_task(send(http, number)) for number in range(NUM_JOBS)]

                async def are_some_there() -> bool:
                    return len(acknowledged) >= NUM_JOBS // 4

                await until(are_some_there)
                killed.kill()
                await asyncio.gather(*sending)
            (tmp_path / "worker").mkdir()
            async with (
                httpx.AsyncClient(base_url=kept, timeout=60, trust_env=False) as http,
                running_front(tmp_path / "worker", engine, broker_url=broker.url),
            ):

                async def has_ended() -> bool:
                    jobs = (await http.get("/jobs", params={"limit": 1000})).json()["jobs"]
                    ended = {job["id"] for job in jobs if job["status"] == "completed"}
                    return acknowledged <= ended and len(ended) == len(jobs)

                await until(has_ended, 120)
            stopped.terminate()
            assert await asyncio.wait_for(stopped.wait(), 60) == 0
    assert len(engine.runs) == len(set(engine.runs)), "each was made once"
