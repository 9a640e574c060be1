"""Jobs from Redis Streams with a real server, beyond what every broker does (`test_every_broker.py`)."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from redis import asyncio as redis

from darkroom.worker.integrations.redis.streams import MAX_STREAMS, RedisBroker
from darkroom.worker.settings.broker import BrokerConfig
from tests.fakes import FakeEngine, draw, wait
from tests.worker.app.test_recovery import front_process
from tests.worker.receiver import Receiver
from tests.worker.running_front import until
from tests.worker.sources.brokers import LEASE_SECONDS, body, received, result, worker
from tests.worker.sources.servers import RedisServer, redis_server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    async with redis_server(tmp_path / "redis") as server:
        yield server


@pytest.fixture
async def producer(server: RedisServer) -> AsyncIterator[RedisBroker]:
    producer = RedisBroker(BrokerConfig(url=SecretStr(server.url)))
    yield producer
    await producer.close()


@pytest.fixture
async def client(server: RedisServer) -> AsyncIterator[redis.Redis]:
    """The server as another program sees it."""
    client = redis.Redis.from_url(server.url)
    yield client
    await client.aclose()


async def test_what_no_worker_can_run_is_a_dead_letter(
    tmp_path: Path, engine: FakeEngine, server: RedisServer, producer: RedisBroker, client: redis.Redis
) -> None:
    async with worker(tmp_path, engine, server):
        await producer.put("wrong", body({"1": {"class_type": "NoSuchNode", "inputs": {}}}))
        await producer.put("garbage", b"\xff{")
        await producer.put("stored", json.dumps({"input": {"workflow": "portrait"}}).encode())
        for name in ("wrong", "garbage", "stored"):
            await result(producer, name)
        dead = await client.xrange("darkroom:dead") or []
        assert {fields[b"id"] for _, fields in dead if fields} == {b"wrong", b"garbage", b"stored"}


async def test_a_worker_that_is_killed_leaves_its_job_to_another(
    tmp_path: Path, engine: FakeEngine, server: RedisServer, producer: RedisBroker
) -> None:
    names = {"BROKER_URL": server.url, "BROKER_LEASE_SECONDS": str(LEASE_SECONDS)}
    async with front_process(tmp_path, engine, **names) as killed:
        await producer.put("one", body(wait()))

        async def runs() -> bool:
            return len(engine.runs) == 1

        await until(runs)
        await killed.send(9)
        engine.release_all()
        async with worker(tmp_path / "second", engine, server):
            assert (await result(producer, "one"))["status"] == "completed"
    assert len(engine.runs) == 2
    async with front_process(tmp_path, engine, **names) as back:  # its own copy is another worker's now

        async def is_dropped() -> bool:
            return await back.status("one") == "cancelled"

        await until(is_dropped)
    assert len(engine.runs) == 2 and json.loads(await producer.result("one") or b"")["status"] == "completed"


@pytest.mark.slow
async def test_a_worker_that_was_killed_goes_on_with_its_job(
    tmp_path: Path, engine: FakeEngine, server: RedisServer, producer: RedisBroker
) -> None:
    names = {"BROKER_URL": server.url, "BROKER_LEASE_SECONDS": "600"}
    async with front_process(tmp_path, engine, **names) as killed:
        await producer.put("one", body(wait()))

        async def runs() -> bool:
            return len(engine.runs) == 1

        await until(runs)
        await killed.send(9)
    async with front_process(tmp_path, engine, **names):
        engine.release_all()
        assert (await result(producer, "one"))["status"] == "completed"
    assert await producer.depth() == 0


async def test_a_worker_that_stops_gives_back_what_it_has_not_begun(
    tmp_path: Path, engine: FakeEngine, server: RedisServer, producer: RedisBroker
) -> None:
    async with worker(tmp_path, engine, server, broker_lease_seconds=600, drain_timeout=30) as stopping:
        await producer.put("begun", body(wait()))
        await stopping.until("begun", "generating")
        await producer.put("waiting", body(draw()))

        async def num_held() -> int:
            held: int = (await stopping.http.get("/health")).json()["broker"]["held"]
            return held

        async def are_both_held() -> bool:
            return await num_held() == 2

        async def is_one_given_back() -> bool:
            return await num_held() == 1

        await until(are_both_held)
        stopping.front.begin_to_drain()
        await until(is_one_given_back)
        engine.release()
        async with worker(tmp_path / "second", engine, server, broker_lease_seconds=600):
            assert (await result(producer, "waiting"))["status"] == "completed"
            assert (await result(producer, "begun"))["status"] == "completed"
    assert len(engine.runs) == 2


async def test_a_job_whose_workers_are_lost_each_time_is_a_dead_letter(
    tmp_path: Path, engine: FakeEngine, server: RedisServer, producer: RedisBroker
) -> None:
    await producer.put("poison", body(draw()))
    for number in range(3):
        gone = RedisBroker(BrokerConfig(url=SecretStr(server.url), lease_seconds=1.0))
        await received(gone, f"gone-{number}")
        await gone.close()
    async with worker(tmp_path, engine, server):
        assert (await result(producer, "poison"))["error"]["code"] == "too_many_deliveries"
    assert not engine.runs


async def test_one_webhook_comes_for_a_job_of_the_queue(
    tmp_path: Path, engine: FakeEngine, server: RedisServer, producer: RedisBroker, receiver: Receiver
) -> None:
    async with worker(tmp_path, engine, server, allowed_private_hosts=("127.0.0.1",)):
        await producer.put("one", body(draw(), webhook={"url": receiver.url}))
        await result(producer, "one")

        async def came() -> bool:
            return bool(receiver.calls)

        await until(came)
    assert [json.loads(content)["id"] for _, content in receiver.calls] == ["one"]


async def test_jobs_that_do_not_begin_send_one_webhook_each(
    tmp_path: Path, engine: FakeEngine, server: RedisServer, producer: RedisBroker, receiver: Receiver
) -> None:
    hook = {"url": receiver.url, "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
    await producer.put("lost", body(draw(), webhook=hook, metadata={"order": 7}))
    for number in range(3):
        gone = RedisBroker(BrokerConfig(url=SecretStr(server.url), lease_seconds=1.0))
        await received(gone, f"gone-{number}")
        await gone.close()
    settings = {"allowed_private_hosts": ("127.0.0.1",), "webhook_url": receiver.url}
    async with worker(tmp_path, engine, server, **settings) as front:
        await producer.put("refused", body({"1": {"class_type": "NoSuchNode", "inputs": {}}}, webhook=hook))
        await producer.put("damaged", b"\xff{")
        ends = {name: await result(producer, name) for name in ("lost", "refused", "damaged")}

        async def came() -> bool:
            return len(receiver.calls) >= 3

        await until(came)
        told = {json.loads(content)["id"]: (headers, json.loads(content)) for headers, content in receiver.calls}
        assert len(receiver.calls) == 3 and told.keys() == ends.keys()
        for name, (headers, said) in told.items():
            assert said["status"] == ends[name]["status"] == "failed"
            assert said["error"]["code"] == ends[name]["error"]["code"]
            assert headers["webhook-id"].startswith("msg_") and ("webhook-signature" in headers) == (name != "damaged")
            assert (await front.http.get(f"/result/{name}")).json()["status"] == "failed"
        assert told["lost"][1]["metadata"] == {"order": 7} and told["lost"][1]["error"]["code"] == "too_many_deliveries"
    assert not engine.runs


async def test_jobs_for_the_model_in_use_go_first(server: RedisServer, producer: RedisBroker) -> None:
    consumer = RedisBroker(BrokerConfig(url=SecretStr(server.url)))
    await consumer.connect("one")
    for name in ("a", "b"):
        await producer.put(name, b"{}", model=f"{name}.safetensors")
    await producer.put("any", b"{}")
    await producer.put("urgent", b"{}", priority=1)
    order = [(await consumer.receive(1, ["b.safetensors"]))[0].job_id for _ in range(4)]
    assert order == ["urgent", "b", "any", "a"]
    await consumer.close()


async def test_an_urgent_job_goes_before_those_of_more_owners_than_a_worker_looks_at(
    server: RedisServer, producer: RedisBroker
) -> None:
    for number in range(MAX_STREAMS + 10):
        await producer.put(f"low-{number}", b"{}", owner=f"owner {number}", priority=-1)
    await producer.put("urgent", b"{}", owner="the last one", priority=1)
    consumer = RedisBroker(BrokerConfig(url=SecretStr(server.url)))
    await consumer.connect("one")
    assert [delivery.job_id for delivery in await consumer.receive(2, [])] == ["urgent", "low-0"]
    await consumer.close()


async def test_owners_take_turns_within_a_priority(server: RedisServer, producer: RedisBroker) -> None:
    for number in range(6):
        await producer.put(f"shop-{number}", b"{}", owner="shop", model=f"{number % 2}.safetensors")
    for name in ("studio: 1", "studio: 2"):
        await producer.put(name, b"{}", owner="a studio: of two")
    await producer.put("urgent", b"{}", owner="shop", priority=1)
    await producer.put("nobodys", b"{}")
    consumer = RedisBroker(BrokerConfig(url=SecretStr(server.url)))
    await consumer.connect("one")
    owners = []
    for most in (1, 1, 2, 2, 2, 2):
        owners += [delivery.owner for delivery in await consumer.receive(most, ["0.safetensors"])]
    assert owners[0] == "shop", "the urgent one"
    assert set(owners[1:4]) == {"shop", "a studio: of two", ""}
    assert owners[4:6] in (["shop", "a studio: of two"], ["a studio: of two", "shop"])
    assert owners[6:] == ["shop"] * 4
    await consumer.close()


async def test_an_owner_with_more_streams_than_a_worker_looks_at_lets_others_have_their_turn(
    server: RedisServer, producer: RedisBroker
) -> None:
    for number in range(MAX_STREAMS + 10):
        await producer.put(f"shop-{number}", b"{}", owner="shop", model=f"{number}.safetensors")
    await producer.put("studio", b"{}", owner="studio")
    consumer = RedisBroker(BrokerConfig(url=SecretStr(server.url)))
    await consumer.connect("one")
    wanted = f"{MAX_STREAMS + 5}.safetensors"
    assert {delivery.job_id for delivery in await consumer.receive(2, [wanted])} == {
        f"shop-{MAX_STREAMS + 5}",
        "studio",
    }
    assert [delivery.job_id for delivery in await consumer.receive(1, ["of none"])] == ["shop-0"]
    await consumer.close()


async def test_expired_and_given_back_jobs_are_found_behind_many_that_are_held(
    server: RedisServer, producer: RedisBroker
) -> None:
    lost, held, other = (RedisBroker(BrokerConfig(url=SecretStr(server.url), lease_seconds=2)) for _ in range(3))
    for broker, name in ((lost, "lost"), (held, "held"), (other, "other")):
        await broker.connect(name)
    for number in range(60):
        await producer.put(f"job-{number}", b"{}")
    receipts = [delivery.receipt for delivery in await held.receive(56, [])]
    given_back = await lost.receive(2, [])
    await lost.receive(2, [])
    for delivery in given_back:
        await lost.give_back(delivery.receipt)
    taken: list[str] = []

    async def take() -> bool:
        await held.renew(receipts)
        for delivery in await other.receive(1, []):
            taken.append(delivery.job_id)
            await other.finish(delivery.job_id, delivery.receipt, b"{}")
        return len(taken) == 4

    await take()
    await take()
    assert taken == ["job-56", "job-57"], "those that were given back, at once"

    await until(take)
    assert taken[2:] == ["job-58", "job-59"], "those whose worker is gone"
    for broker in (lost, held, other):
        await broker.close()


async def test_an_autoscaler_sees_queued_jobs_as_lag_and_held_ones_as_pending(
    server: RedisServer, producer: RedisBroker, client: redis.Redis
) -> None:
    async def seen() -> tuple[int, int]:
        (group,) = await client.xinfo_groups("darkroom:jobs:normal")
        return group["lag"], group["pending"]

    for name in ("a", "b"):
        await producer.put(name, b"{}")
    assert await seen() == (2, 0), "before the first worker"
    consumer = RedisBroker(BrokerConfig(url=SecretStr(server.url)))
    await consumer.connect("one")
    (held,) = await consumer.receive(1, [])
    assert await seen() == (1, 1)
    await consumer.finish(held.job_id, held.receipt, b"{}")
    assert await seen() == (1, 0)
    (held,) = await consumer.receive(1, [])
    await consumer.finish(held.job_id, held.receipt, b"{}")
    await producer.put("c", b"{}")
    assert await seen() == (1, 0)
    await consumer.close()


async def test_the_time_in_the_queue_counts_for_the_expiry_of_a_job(
    tmp_path: Path, engine: FakeEngine, server: RedisServer, producer: RedisBroker
) -> None:
    await producer.put("late", body(draw(), expires=0.01))
    await producer.put("good", body(draw(), expires=600))
    async with worker(tmp_path, engine, server):
        late = await result(producer, "late")
        assert late["status"] == "timeout" and late["error"]["code"] == "job_expired"
        assert (await result(producer, "good"))["status"] == "completed"
    assert len(engine.runs) == 1


async def test_a_job_that_is_queued_twice_past_all_checks_has_one_result(
    tmp_path: Path, engine: FakeEngine, server: RedisServer, producer: RedisBroker, client: redis.Redis
) -> None:
    for _ in range(2):
        await client.xadd("darkroom:jobs:normal", {"id": "twice", "body": body(draw())})
    async with worker(tmp_path / "one", engine, server), worker(tmp_path / "two", engine, server):
        first = await result(producer, "twice")
        assert first["status"] == "completed"

        async def is_empty() -> bool:
            return await producer.depth() == 0

        await until(is_empty)
        assert await result(producer, "twice") == first


@pytest.mark.slow
async def test_a_worker_that_slept_through_its_lease_drops_the_job_that_another_has(
    tmp_path: Path, engine: FakeEngine, server: RedisServer, producer: RedisBroker
) -> None:
    names = {"BROKER_URL": server.url, "BROKER_LEASE_SECONDS": str(LEASE_SECONDS)}
    async with front_process(tmp_path, engine, **names) as asleep:
        await producer.put("one", body(wait()))
        await asleep.until_status("one", "generating")
        asleep.process.send_signal(signal.SIGSTOP)
        engine.release_all()
        async with worker(tmp_path / "second", engine, server):
            first = await result(producer, "one")
            assert first["status"] == "completed"
            asleep.process.send_signal(signal.SIGCONT)
            await asleep.until_status("one", "cancelled")
            assert await result(producer, "one") == first
    assert len(engine.runs) == 2
