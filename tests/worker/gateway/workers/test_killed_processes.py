"""Workers over HTTP and their gateway as processes, killed in the middle of their jobs."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.fakes import FakeEngine, draw, wait
from tests.worker.app.test_recovery import front_process
from tests.worker.gateway.gateway_server import gateway_server
from tests.worker.postgres_server import PostgresServer
from tests.worker.running_front import until
from tests.worker.sources.servers import redis_server

NUM_JOBS = 24


@contextlib.asynccontextmanager
async def url_of(kind: str, folder: Path) -> AsyncIterator[str]:
    """Run a broker of a kind and yield its URL; "" for the queue in the database of gateways."""
    if kind == "database":
        yield ""
        return
    async with redis_server(folder) as broker:
        yield broker.url


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis", "database"])
async def test_every_job_ends_once_over_kills_of_a_worker_and_of_the_gateway_that_workers_ask(
    tmp_path: Path, engine: FakeEngine, postgres: PostgresServer, kind: str
) -> None:
    database = postgres.url(postgres.new_database())
    async with (
        url_of(kind, tmp_path / "redis") as broker_url,
        gateway_server(tmp_path, broker_url, database, BROKER_LEASE_SECONDS="2") as asked,
        gateway_server(tmp_path, broker_url, database, BROKER_LEASE_SECONDS="2") as kept,
        kept.client() as http,
    ):
        names = {"GATEWAY_URL": asked.url, "WORKER_TOKEN": asked.token}
        folders = [tmp_path / name for name in ("first", "second")]
        for folder in folders:
            folder.mkdir()

        async def completed() -> set[str]:
            jobs = (await http.get("/jobs", params={"limit": 1000})).json()["jobs"]
            return {job["id"] for job in jobs if job["status"] == "completed"}

        async with front_process(folders[0], engine, **names) as killed:
            await http.post("/generate", json={"input": {"workflow_json": wait(), "request_id": "held"}})

            async def runs() -> bool:
                return len(engine.runs) == 1

            await until(runs)
            await killed.send(signal.SIGKILL)
        engine.forget_everything()
        engine.release_all()
        async with front_process(folders[1], engine, **names):
            for number in range(NUM_JOBS):
                workflow = draw(str(number))
                sent = await http.post(
                    "/generate", json={"input": {"workflow_json": workflow, "request_id": f"job-{number}"}}
                )
                assert sent.status_code == 202

            async def some_have_ended() -> bool:
                return len(await completed()) >= NUM_JOBS // 4

            await until(some_have_ended, 120)
            await asked.stop()
            await asyncio.sleep(1.0)  # results wait for it, and so do questions
            if kind == "database":
                postgres.kill()
                await asyncio.to_thread(postgres.start)
            await asked.start()

            async def all_have_ended() -> bool:
                with contextlib.suppress(httpx.TransportError, KeyError):  # of an answer without jobs
                    return len(await completed()) == NUM_JOBS + 1
                return False

            await until(all_have_ended, 120)
            assert (await http.get("/queue-info")).json()["queued"] == 0
    made = [name for name in engine.runs if not name.endswith("-held")]
    assert len(made) <= NUM_JOBS + 6, "only what was on its way when the gateway was killed is made again"
