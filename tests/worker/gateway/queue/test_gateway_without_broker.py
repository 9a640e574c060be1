"""Gateways whose database is the queue, from the caller to the worker and back, while parts of it are away."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from darkroom.worker.errors import StateUnusable
from darkroom.worker.gateway.database import GatewayDatabase
from tests.fakes import FakeEngine, draw, wait
from tests.worker.app.test_recovery import front_process
from tests.worker.gateway.running_gateway import LocalGateway
from tests.worker.postgres_server import PostgresServer
from tests.worker.running_front import running_front, until
from tests.worker.sources.servers import redis_server


def body(job_id: str, workflow: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"input": {"workflow_json": workflow or draw(), "request_id": job_id}}


def given_by(gateway: LocalGateway) -> dict[str, Any]:
    """Return the settings of a worker that asks this gateway."""
    return dict(gateway.settings)


async def test_two_gateways_share_jobs_and_a_database_that_is_restarted_loses_none(
    tmp_path: Path, engine: FakeEngine, postgres: PostgresServer
) -> None:
    url = postgres.url(postgres.new_database())
    first, second = LocalGateway("", url, broker_lease_seconds=20), LocalGateway("", url, broker_lease_seconds=20)
    for gateway in (first, second):
        await gateway.start()
    await first.make_token("worker")

    async def runs() -> bool:
        return len(engine.runs) == 1

    async with running_front(tmp_path, engine, **given_by(first)), second.client() as http:
        following = asyncio.create_task(http.post("/generate/sync", json=body("held", wait())))
        await until(runs)
        shown = (await http.get("/api/v1/scale")).json()
        assert (shown["jobs"], shown["by_priority"]["normal"]) == (1, 1)
        postgres.kill()
        engine.release_all()
        assert (await http.get("/ready")).status_code == 503
        assert (await http.post("/generate", json=body("away"))).status_code == 503
        await asyncio.to_thread(postgres.start)
        ended = (await following).json()
        assert (ended["status"], ended["id"]) == ("completed", "held") and ended["output"][0]["data"]
        assert (await http.post("/generate/sync", json=body("next"))).json()["status"] == "completed"
        async with first.client() as other:
            listed = (await other.get("/jobs")).json()["jobs"]
            assert sorted((job["id"], job["status"]) for job in listed) == [
                ("held", "completed"),
                ("next", "completed"),
            ]
            assert (await other.get("/api/v1/scale")).json()["jobs"] == 0
    assert len(engine.runs) == 2, "neither was made twice"
    for gateway in (first, second):
        await gateway.stop()


async def test_a_gateway_alone_needs_no_other_service_and_goes_on_with_its_jobs_after_a_restart(
    tmp_path: Path, engine: FakeEngine
) -> None:
    gateway = LocalGateway("", "", state_directory=tmp_path / "state", broker_lease_seconds=20)
    await gateway.start()
    await gateway.make_token("worker")
    async with gateway.client() as http:
        for name in ("one", "two"):
            assert (await http.post("/generate", json=body(name))).status_code == 202
        cancelled = await http.post("/cancel/two")
        assert cancelled.json()["status"] == "cancelled"
    await gateway.start()  # again, with what is stored
    async with running_front(tmp_path / "worker", engine, **given_by(gateway)), gateway.client() as http:

        async def has_ended() -> bool:
            return bool((await http.get("/result/one")).json()["status"] == "completed")

        await until(has_ended)
        events = []
        async with http.stream("POST", "/generate/stream", json=body("three")) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: "):
                    events.append(json.loads(line[6:])["status"])
        assert events[-1] == "final_result"

        async def is_empty() -> bool:  # the worker was told of the cancelled one, too
            info = (await http.get("/queue-info")).json()
            return (info["queued"], info["live"], info["workers"]) == (0, 0, 1)

        await until(is_empty)
        assert (await http.get("/result/two")).json()["status"] == "cancelled"
        metrics = (await http.get("/metrics")).text
        assert 'darkroom_gateway_work{model="",priority="normal"} 0.0' in metrics
    assert len(engine.runs) == 2
    await gateway.stop()


async def test_a_gateway_takes_so_many_jobs_at_a_time(tmp_path: Path) -> None:
    gateway = LocalGateway("", "", state_directory=tmp_path, gateway_max_jobs=6)
    await gateway.start()
    async with gateway.client() as http:
        statuses = [(await http.post("/generate", json=body(str(number)))).status_code for number in range(8)]
    assert statuses == [202] * 6 + [503] * 2
    await gateway.stop()


async def test_jobs_go_to_a_broker_and_back_with_the_setting_of_gateways_that_are_never_mixed(
    tmp_path: Path, engine: FakeEngine, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("darkroom.worker.gateway.gateway.SEND_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr("darkroom.worker.gateway.database.LEAVING_SECONDS", 0.0)
    url = postgres.url(postgres.new_database())
    async with redis_server(tmp_path / "redis") as redis:
        with_queue, with_broker = LocalGateway("", url, broker_lease_seconds=20), LocalGateway(redis.url, url)
        await with_queue.start()
        async with with_queue.client() as http:
            assert (await http.post("/generate", json=body("one"))).status_code == 202
        with pytest.raises(StateUnusable, match="stop them all"):
            await GatewayDatabase(postgres.config(url.rpartition("/")[2]), has_broker=True).open()
        await with_queue.stop()
        await with_broker.start()
        with pytest.raises(StateUnusable, match="gateways with one use"):
            await GatewayDatabase(postgres.config(url.rpartition("/")[2])).open()

        async def is_sent() -> bool:
            return await with_broker.producer.depth() == 1

        await until(is_sent)
        await with_broker.stop()
        await with_queue.start()
        await with_queue.make_token("worker")
        async with running_front(tmp_path, engine, **given_by(with_queue)), with_queue.client() as http:
            assert (await http.post("/generate/sync", json=body("one"))).json()["status"] == "completed"
        await with_queue.stop()
    assert len(engine.runs) == 1


@pytest.mark.slow
async def test_a_worker_that_is_killed_with_a_job_leaves_it_to_another(
    tmp_path: Path, engine: FakeEngine, postgres: PostgresServer
) -> None:
    gateway = LocalGateway("", postgres.url(postgres.new_database()), broker_lease_seconds=2)
    await gateway.start()
    await gateway.make_token("workers")
    names = {"GATEWAY_URL": gateway.url, "WORKER_TOKEN": gateway.token}
    for name in ("killed", "other"):
        (tmp_path / name).mkdir()
    async with gateway.client() as http:
        async with front_process(tmp_path / "killed", engine, **names) as killed:
            await http.post("/generate", json=body("one", wait()))

            async def runs() -> bool:
                return len(engine.runs) == 1

            await until(runs)
            await killed.send(signal.SIGKILL)
        engine.forget_everything()
        engine.release_all()
        async with front_process(tmp_path / "other", engine, **names):
            ended = await http.post("/generate/sync", json=body("one", wait()), timeout=httpx.Timeout(90))
            assert ended.json()["status"] == "completed"
    await gateway.stop()
