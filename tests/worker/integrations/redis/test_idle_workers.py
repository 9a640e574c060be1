"""Idle workers at a real Redis: who wakes, what it costs, and what is left of the streams of models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from redis import asyncio as redis

from darkroom.worker.integrations.redis.streams import RedisBroker
from darkroom.worker.settings.broker import BrokerConfig
from darkroom.worker.sources.broker import Delivery
from tests.worker.sources.servers import RedisServer, redis_server

NUM_WORKERS = 20
NUM_JOBS = 40
SETTLE_SECONDS = 0.3


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    async with redis_server(tmp_path / "redis") as server:
        yield server


@pytest.fixture
async def client(server: RedisServer) -> AsyncIterator[redis.Redis]:
    client = redis.Redis.from_url(server.url)
    yield client
    await client.aclose()


class Workers:
    """Connected consumers, each with a call of `receive` under way."""

    def __init__(self, url: str, num_workers: int = NUM_WORKERS) -> None:
        self.brokers = [RedisBroker(BrokerConfig(url=SecretStr(url))) for _ in range(num_workers)]
        self.waiting: dict[int, asyncio.Task[list[Delivery]]] = {}

    async def connect(self) -> None:
        for number, broker in enumerate(self.brokers):
            await broker.connect(f"worker-{number}")
            self.wait(number)
        await asyncio.sleep(SETTLE_SECONDS)

    def wait(self, number: int) -> None:
        self.waiting[number] = asyncio.create_task(self.brokers[number].receive(1, []))

    async def delivered(self) -> tuple[int, Delivery]:
        """Wait for the first delivery; return it with the number of its worker, which does not wait any more."""
        async with asyncio.timeout(30):
            while True:
                done, _ = await asyncio.wait(self.waiting.values(), return_when=asyncio.FIRST_COMPLETED)
                for number, task in list(self.waiting.items()):
                    if task in done:
                        del self.waiting[number]
                        if found := task.result():
                            return number, found[0]
                        self.wait(number)

    async def close(self) -> None:
        for task in self.waiting.values():
            task.cancel()
        await asyncio.gather(*self.waiting.values(), return_exceptions=True)
        for broker in self.brokers:
            await broker.close()


@pytest.fixture
async def workers(server: RedisServer) -> AsyncIterator[Workers]:
    workers = Workers(server.url)
    await workers.connect()
    yield workers
    await workers.close()


@pytest.fixture
async def producer(server: RedisServer) -> AsyncIterator[RedisBroker]:
    producer = RedisBroker(BrokerConfig(url=SecretStr(server.url)))
    yield producer
    await producer.close()


async def num_commands(client: redis.Redis) -> int:
    """Return the number of commands that the server has executed, those of scripts with them."""
    stats = await client.info("commandstats")
    return sum(one["calls"] for name, one in stats.items() if name != "cmdstat_info")


async def model_streams(client: redis.Redis) -> set[object]:
    keys: list[object] = list(await client.keys("darkroom:jobs:*:model:*"))
    return {*keys, *await client.smembers("darkroom:streams")}


@pytest.mark.parametrize("model", ["", "cat.safetensors"])
async def test_a_job_wakes_one_worker(workers: Workers, producer: RedisBroker, model: str) -> None:
    await producer.put("one", b"{}", model=model)
    number, delivery = await workers.delivered()
    assert delivery.job_id == "one"
    await asyncio.sleep(SETTLE_SECONDS)
    assert not any(task.done() for task in workers.waiting.values())
    await workers.brokers[number].finish("one", delivery.receipt, b"{}")


async def test_commands_a_job_do_not_grow_with_idle_workers_and_models(
    server: RedisServer, producer: RedisBroker, client: redis.Redis
) -> None:
    async def commands_a_job(num_workers: int, num_models: int) -> float:
        workers = Workers(server.url, num_workers)
        await workers.connect()
        before = await num_commands(client)
        for job in range(NUM_JOBS):
            await producer.put(f"{num_workers}-{job}", b"{}", model=f"{job % num_models}.safetensors")
            number, delivery = await workers.delivered()
            await workers.brokers[number].finish(delivery.job_id, delivery.receipt, b"{}")
            workers.wait(number)
        counted = (await num_commands(client) - before) / NUM_JOBS
        assert await model_streams(client) == set()
        await workers.close()
        return counted

    few = await commands_a_job(2, 2)
    many = await commands_a_job(NUM_WORKERS, NUM_JOBS)
    assert many <= 1.5 * few and many <= 70, (few, many)


async def test_idle_workers_ask_for_nothing(workers: Workers, client: redis.Redis) -> None:
    before = await num_commands(client)
    await asyncio.sleep(1.5)
    assert await num_commands(client) - before < NUM_WORKERS


async def test_a_job_that_is_given_back_wakes_another_worker(workers: Workers, producer: RedisBroker) -> None:
    for model in ("", "cat.safetensors"):
        await producer.put(f"of-{model}", b"{}", model=model)
        first, held = await workers.delivered()
        assert await workers.brokers[first].give_back(held.receipt)
        second, again = await workers.delivered()
        assert (again.job_id, again.num_deliveries) == (held.job_id, 1) and second != first
        await workers.brokers[second].finish(again.job_id, again.receipt, b"{}")
        workers.wait(first)
        workers.wait(second)


async def test_a_model_stream_by_hand_is_noticed_and_goes_when_it_is_empty(
    server: RedisServer, client: redis.Redis
) -> None:
    await client.xadd("darkroom:jobs:low:model:cat.safetensors", {"id": "by-hand", "body": b"{}"})
    await client.sadd("darkroom:streams", "jobs:low:model:cat.safetensors", "jobs:high:model:gone", "nonsense")
    workers = Workers(server.url, 1)
    await workers.connect()
    number, delivery = await workers.delivered()
    assert delivery.job_id == "by-hand"
    await workers.brokers[number].finish("by-hand", delivery.receipt, b"{}")
    assert await model_streams(client) == {b"nonsense"}
    await workers.close()


async def test_no_more_jobs_come_than_were_asked_for_also_from_several_streams_at_once(
    server: RedisServer, client: redis.Redis, producer: RedisBroker
) -> None:
    consumer = RedisBroker(BrokerConfig(url=SecretStr(server.url)))
    await consumer.connect("one")
    for number in range(6):
        await producer.put(f"job-{number}", b"{}", priority=number % 3 - 1, model="cat" if number > 2 else "")
    found = [await consumer.receive(4, []), await consumer.receive(4, [])]
    assert [len(deliveries) for deliveries in found] == [4, 2]
    assert len({one.job_id for deliveries in found for one in deliveries}) == 6
    assert await consumer.receive(1, []) == []
    await consumer.close()
