"""Jobs from Redis Streams, with a real server, a real front and a fake engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.fakes import FakeEngine, draw, wait
from tests.worker.app.test_recovery import front_process
from tests.worker.receiver import Receiver
from tests.worker.running_front import RunningFront, running_front, until
from tests.worker.sources.servers import RedisServer, redis_server
from worker.integrations.redis.streams import RedisBroker
from worker.settings.broker import BrokerConfig
from worker.sources.broker import BrokerUnreachable

LEASE_SECONDS = 1.0


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    async with redis_server(tmp_path / "redis") as server:
        yield server


@pytest.fixture
async def producer(server: RedisServer) -> AsyncIterator[RedisBroker]:
    producer = RedisBroker(BrokerConfig(url=SecretStr(server.url)))
    yield producer
    await producer.close()


@contextlib.asynccontextmanager
async def worker(folder: Path, engine: FakeEngine, server: RedisServer, **changes: Any) -> AsyncIterator[RunningFront]:
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240
    broker = {"broker_url": server.url, "broker_lease_seconds": LEASE_SECONDS, **changes}
    async with running_front(folder, engine, **broker) as front:
        yield front


def body(workflow: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"input": {"workflow_json": workflow, **fields}}).encode()


async def result(producer: RedisBroker, job_id: str) -> dict[str, Any]:
    found: list[bytes] = []

    async def is_there() -> bool:
        with contextlib.suppress(BrokerUnreachable):  # it was killed a moment ago
            stored = await producer.result(job_id)
            found.extend([] if stored is None else [stored])
        return bool(found)

    await until(is_there)
    ended: dict[str, Any] = json.loads(found[0])
    return ended


async def test_a_job_from_the_queue_ends_with_its_picture_at_the_broker(
    tmp_path: Path, engine: FakeEngine, server: RedisServer, producer: RedisBroker
) -> None:
    async with worker(tmp_path, engine, server) as front:
        chosen = {"overrides": {"#text": "fox"}, "metadata": {"order": 7}, "timeout": 60, "previews": True}
        assert await producer.put("first", body(draw(), **chosen))
        assert not await producer.put("first", body(draw(), **chosen)), "its id is known"
        ended = await result(producer, "first")
        assert ended["metadata"] == {"order": 7} and "fox" in json.dumps(ended["parameters"])
        assert ended["status"] == "completed" and ended["id"] == "first"
        assert ended["output"][0]["data"], "without a store or a public address the picture itself"
        assert await producer.depth() == 0
        events = [json.loads(event) for _, event in await producer.events("first", "0", 0.01)]
        assert events[0]["id"] == "first"
        health = (await front.http.get("/health")).json()["broker"]
        assert health == {"broker": f"redis://127.0.0.1:{server.port}", "state": "connected", "held": 0}
    assert len(engine.runs) == 1


async def test_what_no_worker_can_run_is_a_dead_letter_with_the_reason(
    tmp_path: Path, engine: FakeEngine, server: RedisServer, producer: RedisBroker
) -> None:
    async with worker(tmp_path, engine, server):
        await producer.put("wrong", body({"1": {"class_type": "NoSuchNode", "inputs": {}}}))
        await producer.put("garbage", b"\xff{")
        await producer.put("stored", json.dumps({"input": {"workflow": "portrait"}}).encode())
        wrong = await result(producer, "wrong")
        assert wrong["status"] == "failed" and wrong["error"]["problems"][0]["class_type"] == "NoSuchNode"
        assert (await result(producer, "garbage"))["error"]["code"] == "request_rejected"
        assert (await result(producer, "stored"))["error"]["code"] == "workflow_not_found"
        dead: Any = await producer._redis.xrange("darkroom:dead")
        assert {fields[b"id"] for _, fields in dead} == {b"wrong", b"garbage", b"stored"}
    assert not engine.runs


async def test_a_cancelled_job_ends_wherever_it_is(
    tmp_path: Path, engine: FakeEngine, server: RedisServer, producer: RedisBroker
) -> None:
    async with worker(tmp_path, engine, server, broker_max_held=1):
        await producer.put("running", body(wait()))
        await producer.put("queued", body(draw()))

        async def runs() -> bool:
            return len(engine.runs) == 1

        await until(runs)
        await producer.cancel("queued")
        await producer.cancel("running")
        assert (await result(producer, "running"))["status"] == "cancelled"
        assert (await result(producer, "queued"))["status"] == "cancelled"
    assert len(engine.runs) == 1


async def test_a_worker_that_is_killed_leaves_its_job_to_another(
    tmp_path: Path, engine: FakeEngine, server: RedisServer, producer: RedisBroker
) -> None:
    names = {"BROKER_URL": server.url, "BROKER_LEASE_SECONDS": str(LEASE_SECONDS)}
    async with front_process(tmp_path, engine, **names) as killed:
        await producer.put("one", body(wait(2.0)))

        async def runs() -> bool:
            return len(engine.runs) == 1

        await until(runs)
        await killed.send(9)
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
        await producer.put("one", body(wait(1.0)))

        async def runs() -> bool:
            return len(engine.runs) == 1

        await until(runs)
        await killed.send(9)
    async with front_process(tmp_path, engine, **names):
        assert (await result(producer, "one"))["status"] == "completed"
    assert await producer.depth() == 0


async def test_the_broker_may_be_killed_while_a_job_runs(
    tmp_path: Path, engine: FakeEngine, server: RedisServer, producer: RedisBroker
) -> None:
    async with worker(tmp_path, engine, server) as front:
        await producer.put("one", body(wait(0.5)))
        await producer.put("two", body(draw()))

        async def runs() -> bool:
            return bool(engine.runs)

        await until(runs)
        server.kill()

        async def is_reported() -> bool:
            ready = (await front.http.get("/ready")).json()
            return bool(ready["status"] == "ready" and ready["broker"]["state"] == "unreachable")

        await until(is_reported)
        assert await front.until("one", "completed")
        await server.start()
        assert (await result(producer, "one"))["status"] == "completed"
        assert (await result(producer, "two"))["status"] == "completed"
    assert await producer.depth() == 0


async def test_a_worker_that_stops_gives_back_what_it_has_not_begun(
    tmp_path: Path, engine: FakeEngine, server: RedisServer, producer: RedisBroker
) -> None:
    async with worker(tmp_path, engine, server, broker_lease_seconds=600, drain_timeout=30) as stopping:
        await producer.put("begun", body(wait(1.5)))
        await stopping.until("begun", "generating")
        await producer.put("waiting", body(draw()))

        async def are_held() -> bool:
            return bool((await stopping.http.get("/health")).json()["broker"]["held"] == 2)

        await until(are_held)
        stopping.front.begin_to_drain()
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
        await gone.connect(f"gone-{number}")
        async with asyncio.timeout(30):
            while not await gone.receive(1, []):
                pass
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
        await gone.connect(f"gone-{number}")
        async with asyncio.timeout(30):
            while not await gone.receive(1, []):
                pass
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


async def test_an_autoscaler_sees_queued_jobs_as_lag_and_held_ones_as_pending(
    server: RedisServer, producer: RedisBroker
) -> None:
    async def seen() -> tuple[int, int]:
        (group,) = await producer._redis.xinfo_groups("darkroom:jobs:normal")
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


@pytest.mark.parametrize("skew_seconds", [-7200.0, 7200.0])
async def test_a_worker_whose_clock_is_wrong_takes_jobs_with_time_limits(
    tmp_path: Path,
    engine: FakeEngine,
    server: RedisServer,
    producer: RedisBroker,
    skew_seconds: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + skew_seconds)
    async with worker(tmp_path, engine, server):
        await producer.put("one", body(draw(), expires=600))
        await producer.put("late", body(draw("late"), expires=0.000001))
        assert (await result(producer, "one"))["status"] == "completed"
        assert (await result(producer, "late"))["error"]["code"] == "job_expired"


async def test_a_job_that_is_queued_twice_past_all_checks_has_one_result(
    tmp_path: Path, engine: FakeEngine, server: RedisServer, producer: RedisBroker
) -> None:
    for _ in range(2):
        await producer._redis.xadd("darkroom:jobs:normal", {"id": "twice", "body": body(draw())})
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
        await producer.put("one", body(wait(3.0)))
        await asleep.until_status("one", "generating")
        asleep.process.send_signal(signal.SIGSTOP)
        async with worker(tmp_path / "second", engine, server):
            first = await result(producer, "one")
            assert first["status"] == "completed"
            asleep.process.send_signal(signal.SIGCONT)
            await asleep.until_status("one", "cancelled")
            assert await result(producer, "one") == first
    assert len(engine.runs) == 2
