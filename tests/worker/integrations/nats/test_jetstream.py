"""Jobs from NATS JetStream, with a real server, a real front and a fake engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.fakes import FakeEngine, draw, wait
from tests.worker.running_front import RunningFront, running_front, until
from tests.worker.sources.servers import NatsServer, nats_server
from worker.integrations.nats.jetstream import NatsBroker
from worker.integrations.nats.leases import key_of
from worker.settings.broker import BrokerConfig
from worker.sources.broker import BrokerUnreachable, JobTooLarge

LEASE_SECONDS = 1.0


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with nats_server(tmp_path / "nats") as server:
        yield server


def broker_of(server: NatsServer, lease_seconds: float = LEASE_SECONDS) -> NatsBroker:
    return NatsBroker(BrokerConfig(url=SecretStr(server.url), lease_seconds=lease_seconds))


@pytest.fixture
async def producer(server: NatsServer) -> AsyncIterator[NatsBroker]:
    producer = broker_of(server)
    yield producer
    await producer.close()


@contextlib.asynccontextmanager
async def worker(folder: Path, engine: FakeEngine, server: NatsServer, **changes: Any) -> AsyncIterator[RunningFront]:
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240
    broker = {"broker_url": server.url, "broker_lease_seconds": LEASE_SECONDS, **changes}
    async with running_front(folder, engine, **broker) as front:
        yield front


def body(workflow: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"input": {"workflow_json": workflow, **fields}}).encode()


async def result(producer: NatsBroker, job_id: str) -> dict[str, Any]:
    found: list[bytes] = []

    async def is_there() -> bool:
        with contextlib.suppress(BrokerUnreachable):  # it was killed a moment ago
            stored = await producer.result(job_id)
            found.extend([] if stored is None else [stored])
        return bool(found)

    await until(is_there)
    ended: dict[str, Any] = json.loads(found[0])
    return ended


async def received(broker: NatsBroker, consumer: str = "") -> Any:
    if consumer:
        await broker.connect(consumer)
    async with asyncio.timeout(30):
        while not (found := await broker.receive(1, [])):
            pass
    return found[0]


async def test_jobs_end_with_their_pictures_dead_letters_and_cancellations(
    tmp_path: Path, engine: FakeEngine, server: NatsServer, producer: NatsBroker
) -> None:
    async with worker(tmp_path, engine, server, broker_max_held=1) as front:
        assert await producer.put("first", body(draw()), owner="shop")
        assert not await producer.put("first", body(draw())), "its id is known"
        ended = await result(producer, "first")
        assert ended["status"] == "completed" and ended["output"][0]["data"]
        events: list[tuple[str, bytes]] = []

        async def is_last_event_there() -> bool:
            events[:] = await producer.events("first", "0", 0.01)
            return bool(json.loads(events[0][1])["status"] == "completed")

        await until(is_last_event_there)
        assert await producer.events("first", events[0][0], 0.01) == []
        await producer.put("wrong", body({"1": {"class_type": "NoSuchNode", "inputs": {}}}))
        assert (await result(producer, "wrong"))["error"]["problems"][0]["class_type"] == "NoSuchNode"
        await producer.put("running", body(wait()))
        await producer.put("queued", body(draw()))
        await front.until("running", "generating")
        await producer.cancel("queued")
        await producer.cancel("running")
        assert (await result(producer, "running"))["status"] == "cancelled"
        assert (await result(producer, "queued"))["status"] == "cancelled"
        assert await producer.depth() == 0
        health = (await front.http.get("/health")).json()["broker"]
        assert health["state"] == "connected" and health["broker"] == f"nats://127.0.0.1:{server.port}"
    assert len(engine.runs) == 2


@pytest.mark.parametrize("skew_seconds", [-7200.0, 7200.0])
async def test_a_worker_whose_clock_is_wrong_takes_jobs_with_time_limits(
    tmp_path: Path,
    engine: FakeEngine,
    server: NatsServer,
    producer: NatsBroker,
    skew_seconds: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + skew_seconds)
    await producer.put("late", body(draw("late"), expires=0.1))
    await asyncio.sleep(0.2)  # its time is over before any worker looks
    async with worker(tmp_path, engine, server):
        assert (await result(producer, "late"))["error"]["code"] == "job_expired"
        await producer.put("one", body(draw(), expires=600))
        assert (await result(producer, "one"))["status"] == "completed"


async def test_the_server_may_be_killed_while_a_job_runs(
    tmp_path: Path, engine: FakeEngine, server: NatsServer, producer: NatsBroker
) -> None:
    async with worker(tmp_path, engine, server) as front:
        await producer.put("one", body(wait(0.5)))
        await front.until("one", "generating")
        server.kill()

        async def is_reported() -> bool:
            ready = (await front.http.get("/ready")).json()
            return bool(ready["status"] == "ready" and ready["broker"]["state"] == "unreachable")

        await until(is_reported)
        await server.start()
        assert (await result(producer, "one"))["status"] == "completed"
    assert len(engine.runs) == 1


async def test_a_lease_that_is_not_renewed_goes_to_another_who_holds_it_then(server: NatsServer) -> None:
    producer, first, second = broker_of(server), broker_of(server), broker_of(server)
    await producer.put("one", b"{}", owner="shop")
    lost = await received(first, "first")
    assert (lost.job_id, lost.owner, lost.num_deliveries) == ("one", "shop", 1)
    taken = await received(second, "second")
    assert taken.num_deliveries == 2
    assert await first.renew([lost.receipt]) == set() and await second.renew([taken.receipt]) == {taken.receipt}
    assert await first.give_back(lost.receipt)  # of no effect
    await second.finish("one", taken.receipt, b'"second"')
    await first.finish("one", lost.receipt, b'"first"')
    assert await producer.result("one") == b'"second"' and await producer.depth() == 0
    assert await second.renew([taken.receipt]) == set(), "it has its result"
    for broker in (producer, first, second):
        await broker.close()


async def test_a_job_that_is_given_back_is_delivered_at_once_and_not_counted(server: NatsServer) -> None:
    first, second = broker_of(server, 600), broker_of(server, 600)
    await first.put("one", b"{}")
    await first.put("urgent", b"{}", priority=1)
    await first.connect("first")
    held = await received(first)
    assert held.job_id == "urgent"
    assert await first.give_back(held.receipt)
    again = await received(second, "second")
    assert (again.job_id, again.num_deliveries) == ("urgent", 1)
    for broker in (first, second):
        await broker.close()


async def test_a_job_that_comes_back_after_its_result_is_not_made_twice(server: NatsServer) -> None:
    broker = broker_of(server)
    await broker.put("one", b"{}")
    await received(broker, "first")  # whose acknowledgement the server forgets
    results = broker._opened.buckets["results"] if broker._opened else None
    assert results is not None
    await results.put(key_of("one"), b'"done"')

    async def is_empty() -> bool:
        assert not await broker.receive(1, [])
        return await broker.depth() == 0

    await until(is_empty)
    await broker.close()


async def test_a_server_that_lost_its_data_gets_its_streams_again_and_held_jobs_end(
    tmp_path: Path, server: NatsServer
) -> None:
    broker = broker_of(server)
    await broker.put("one", b"{}")
    held = await received(broker, "first")
    server.kill()
    server.lose_data()
    await server.start()

    async def is_ours() -> bool:
        with contextlib.suppress(BrokerUnreachable):
            return await broker.renew([held.receipt]) == {held.receipt}
        return False

    await until(is_ours)
    assert not await broker.give_back(held.receipt), "no other worker will get it"

    async def is_finished() -> bool:
        with contextlib.suppress(BrokerUnreachable):
            await broker.finish("one", held.receipt, b'"done"')
            return await broker.result("one") == b'"done"'
        return False

    await until(is_finished)
    await broker.close()


async def test_what_is_too_large_for_a_message_is_refused_or_loses_its_data(server: NatsServer) -> None:
    broker = broker_of(server)
    with pytest.raises(JobTooLarge):
        await broker.put("large", bytes(2_000_000))
    await broker.put("one", b"{}")
    held = await received(broker, "first")
    whole = {"id": "one", "status": "completed", "output": [{"filename": "a.png", "data": "x" * 2_000_000}]}
    await broker.finish("one", held.receipt, json.dumps(whole).encode())
    (shown,) = json.loads(await broker.result("one") or b"")["output"]
    assert shown["filename"] == "a.png" and "PUBLIC_URL" in shown["error"]
    await broker.close()


def test_every_id_has_a_key() -> None:
    assert key_of("order-17") == "order-17"
    keys = {key_of(name) for name in ("", "a b", "é", "a..b", "a.", ".a", "x" * 300)}
    assert len(keys) == 7 and all(key.startswith("sha256-") for key in keys)


async def test_a_server_that_was_never_reached_is_an_error_within_a_time_and_reached_later(
    server: NatsServer, producer: NatsBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.integrations.nats.jetstream.CONNECT_SECONDS", 0.3)
    monkeypatch.setattr("worker.integrations.nats.jetstream.CONNECT_AGAIN_SECONDS", 0.1)
    server.kill()
    asked = [producer.depth() for _ in range(5)]
    async with asyncio.timeout(5):
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(answer) for answer in answers} == {BrokerUnreachable}
    await server.start()

    async def is_reached() -> bool:
        with contextlib.suppress(BrokerUnreachable):
            return await producer.depth() == 0
        return False

    await until(is_reached)
