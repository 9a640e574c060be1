"""Many callers that wait at one gateway, with a real broker and a real database and no worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from darkroom.worker.integrations.redis.streams import MAX_CONNECTIONS, RedisBroker
from darkroom.worker.settings.broker import BrokerConfig
from tests.fakes import draw
from tests.worker.gateway.running_gateway import running_gateway
from tests.worker.postgres_server import PostgresServer
from tests.worker.running_front import until
from tests.worker.sources.servers import RedisServer, redis_server

NUM_CALLERS = 4 * MAX_CONNECTIONS
ENDED = {"status": "completed", "message": "done", "output": [], "timings": {}}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RedisServer]:
    async with redis_server(tmp_path / "redis") as server:
        yield server


@pytest.fixture
async def producer(broker: RedisServer) -> AsyncIterator[RedisBroker]:
    producer = RedisBroker(BrokerConfig(url=SecretStr(broker.url)))
    yield producer
    await producer.close()


@pytest.fixture
async def gateway(broker: RedisServer, postgres: PostgresServer) -> AsyncIterator[httpx.AsyncClient]:
    async with running_gateway(broker.url, postgres.url(postgres.new_database())) as http:
        http.timeout = httpx.Timeout(120)
        yield http


def body(job_id: str) -> dict[str, object]:
    return {"input": {"workflow_json": draw(), "request_id": job_id}}


async def names_at_broker(producer: RedisBroker) -> list[str]:
    """Take all jobs as a worker, and return their ids."""
    await producer.connect("worker")
    return [delivery.job_id for delivery in await producer.receive(NUM_CALLERS, [])]


async def until_waiting(gateway: httpx.AsyncClient, num_jobs: int) -> None:
    async def are_there() -> bool:
        await asyncio.sleep(0.1)
        info = await gateway.get("/queue-info")
        return info.status_code == 200 and info.json()["queued"] == num_jobs

    await until(are_there)


async def test_more_callers_than_connections_to_the_broker_wait_and_probes_are_answered(
    gateway: httpx.AsyncClient, producer: RedisBroker
) -> None:
    async with httpx.AsyncClient(
        base_url=gateway.base_url, timeout=120, trust_env=False, limits=httpx.Limits(max_connections=None)
    ) as callers:
        waiting = [
            asyncio.create_task(callers.post("/generate/sync", json=body(f"job-{number}")))
            for number in range(NUM_CALLERS)
        ]
        await until_waiting(gateway, NUM_CALLERS)
        assert (await gateway.get("/ready")).status_code == 200
        assert (await gateway.post("/cancel/job-0")).json()["status"] == "cancelled"
        assert (await waiting[0]).status_code == 499
        names = await names_at_broker(producer)
        for number, name in enumerate(names):
            await producer.settle(name, json.dumps(ENDED).encode())
            if number % 2:  # of the others a look at the broker tells
                await producer.publish(name, json.dumps({"status": "completed", "message": "done"}).encode())
        replies = await asyncio.gather(*waiting[1:])
    assert {(reply.status_code, reply.json()["status"]) for reply in replies} == {(200, "completed")}
    assert (await gateway.get("/queue-info")).json()["live"] == 0


async def test_an_end_that_nobody_waits_for_is_stored(
    gateway: httpx.AsyncClient, producer: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("darkroom.worker.gateway.collector.BATCH", 1)  # so that looks alone would come to it late
    monkeypatch.setattr("darkroom.worker.gateway.collector.WAIT_SECONDS", (0.0, 0.0))
    for number in range(5):
        assert (await gateway.post("/generate", json=body(f"job-{number}"))).status_code == 202
    *_, name = await names_at_broker(producer)
    await producer.settle(name, json.dumps(ENDED).encode())
    await producer.publish(name, json.dumps({"status": "completed"}).encode())

    async def is_stored() -> bool:
        listed = (await gateway.get("/jobs")).json()["jobs"]
        return [job["status"] for job in listed].count("completed") == 1

    await until(is_stored)


async def test_progress_comes_once_and_garbage_among_the_news_is_passed_over(
    gateway: httpx.AsyncClient, producer: RedisBroker
) -> None:
    assert (await gateway.post("/generate", json=body("one"))).status_code == 202
    (name,) = await names_at_broker(producer)

    async def publish(**event: object) -> None:
        await producer.publish(name, json.dumps({"message": "", "status": "generating", **event}).encode())

    await publish(seq=1, percent=10.0)
    shown = []
    async with gateway.stream("GET", "/stream/one") as reply:
        async for line in reply.aiter_lines():
            if not line.startswith("data: "):
                continue
            event = json.loads(line[6:])
            shown.append(event.get("progress", {}).get("percent"))
            if len(shown) == 2:  # the first event of the worker
                await producer.publish(name, b"no JSON")
                await publish(seq=1, percent=10.0)
                await publish(seq=1, percent=20.0)
                await producer.settle(name, json.dumps(ENDED).encode())
                await publish(seq=2, percent=100.0, status="completed")
    assert shown == [None, 10.0, 20.0, None]


async def test_a_large_result_comes_whole_on_every_way(gateway: httpx.AsyncClient, producer: RedisBroker) -> None:
    waiting = asyncio.create_task(gateway.post("/generate/sync", json=body("one")))
    await until_waiting(gateway, 1)
    (name,) = await names_at_broker(producer)
    output = [{"filename": "large.png", "data": "abcdefgh" * 250_000}]
    await producer.settle(name, json.dumps({**ENDED, "output": output}).encode())
    reply = await waiting
    assert reply.json()["output"] == output and int(reply.headers["content-length"]) == len(reply.content)
    assert (await gateway.get("/result/one")).json()["output"] == output
    assert (await gateway.post("/generate", json=body("one"))).json()["output"] == output
    assert (await gateway.get("/status/one")).json()["output"]["output"] == output
    last = (await gateway.get("/stream/one")).text.strip().rpartition("data: ")[2]
    assert json.loads(last)["result"]["output"] == output
    assert (await gateway.delete("/jobs/one")).status_code == 200
