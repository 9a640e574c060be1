"""The contract of brokers from which a producer gets results, with real servers, real fronts and fake engines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import SecretStr

from darkroom.worker.integrations.gateway.http_broker import HttpBroker
from darkroom.worker.integrations.nats.jetstream import NatsBroker
from darkroom.worker.integrations.redis.streams import RedisBroker
from darkroom.worker.settings.broker import BrokerConfig
from darkroom.worker.sources.broker import Delivery, Producer
from tests.fakes import FakeEngine, draw, wait
from tests.worker.gateway.running_gateway import LocalGateway
from tests.worker.running_front import until
from tests.worker.sources.brokers import LEASE_SECONDS, ProducingBroker, Server, body, received, result, worker
from tests.worker.sources.servers import nats_server, redis_server

RECEIPTS = {
    "redis": '["jobs:normal", "1-1", "first", "two"]', "nats": '["two", "$JS.ACK.jobs.1"]',
    "database": '["database", "two", 1, "first"]', "gateway": "WyJ0d28iXQ==.5e1f", "none": "7",
}  # fmt: skip
"""Receipts as a worker may have them from before its broker was changed, by what gave them."""

CONSUMERS_SIDE = ("connect", "receive", "renew", "finish", "bury", "give_back", "cancelled")


@dataclass(frozen=True, slots=True)
class Kind:
    """A running server of a broker, and what makes a client of it whose leases last for so many seconds."""

    server: Server
    make: Callable[[float], ProducingBroker]

    def broker(self, lease_seconds: float = LEASE_SECONDS) -> ProducingBroker:
        return self.make(lease_seconds)


class RedisThroughGateway(RedisBroker):
    """Producer's side of Redis, and the consumer's side by a gateway before it."""

    def __init__(self, redis_url: str, gateway_url: str, token: str) -> None:
        super().__init__(BrokerConfig(url=SecretStr(redis_url)))
        self.workers_side = HttpBroker(BrokerConfig(gateway_url=gateway_url, worker_token=SecretStr(token)))
        for name in CONSUMERS_SIDE:
            setattr(self, name, getattr(self.workers_side, name))

    async def close(self) -> None:
        await self.workers_side.close()
        await super().close()


class DatabaseThroughGateway:
    """Producer's side of a gateway's own queue, as it was started last, and the consumer's side by its HTTP."""

    def __init__(self, gateway: LocalGateway, producer: Callable[[], Producer]) -> None:
        config = BrokerConfig(gateway_url=gateway.url, worker_token=SecretStr(gateway.token))
        self._workers_side = HttpBroker(config)
        self._producer = producer

    def __getattr__(self, name: str) -> object:
        return getattr(self._workers_side if name in CONSUMERS_SIDE else self._producer(), name)

    async def close(self) -> None:
        await self._workers_side.close()


@contextlib.asynccontextmanager
async def database_of(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Kind]:
    """A gateway whose queue is in its database; with PostgreSQL jobs come from another one."""
    given: dict[str, Any] = {"state_directory": folder, "broker_lease_seconds": LEASE_SECONDS}
    if request.param == "sqlite":
        gateway = LocalGateway("", "", **given)
        await gateway.start()
        await gateway.make_token("workers")
        yield Kind(
            gateway, lambda _seconds: cast(ProducingBroker, DatabaseThroughGateway(gateway, lambda: gateway.producer))
        )
        await gateway.stop()
        return
    postgres = request.getfixturevalue("postgres")
    url = postgres.url(postgres.new_database())
    gateway, patient = LocalGateway("", url, **given), LocalGateway("", url, broker_lease_seconds=600)
    for started in (gateway, patient):
        await started.start()
    await gateway.make_token("workers")
    patient.token = gateway.token
    by_lease = {LEASE_SECONDS: gateway, 600: patient}

    def make(seconds: float) -> ProducingBroker:
        return cast(ProducingBroker, DatabaseThroughGateway(by_lease[seconds], lambda: patient.producer))

    yield Kind(gateway, make)
    for started in (gateway, patient):
        await started.stop()


@pytest.fixture(params=["redis", "nats", "gateway", "postgresql", "sqlite"])
async def kind(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kind]:
    folder = tmp_path / "server"
    if request.param in ("postgresql", "sqlite"):
        async with database_of(request, folder) as kind:
            yield kind
        return
    if request.param == "nats":
        async with nats_server(folder) as nats:
            yield Kind(nats, lambda seconds: NatsBroker(_config(nats, seconds)))
        return
    async with redis_server(folder) as redis:
        if request.param == "redis":
            yield Kind(redis, lambda seconds: RedisBroker(_config(redis, seconds)))
            return
        postgres = request.getfixturevalue("postgres")
        database = postgres.url(postgres.new_database())
        gateway = LocalGateway(redis.url, database, broker_lease_seconds=LEASE_SECONDS)
        patient = LocalGateway(redis.url, database, broker_lease_seconds=600)
        for started in (gateway, patient):
            await started.start()
        await gateway.make_token("workers")
        urls = {LEASE_SECONDS: gateway.url, 600: patient.url}
        yield Kind(gateway, lambda seconds: RedisThroughGateway(redis.url, urls[seconds], gateway.token))
        for started in (gateway, patient):
            await started.stop()


def _config(server: Server, lease_seconds: float) -> BrokerConfig:
    return BrokerConfig(url=SecretStr(server.url), lease_seconds=lease_seconds)


@pytest.fixture
async def producer(kind: Kind) -> AsyncIterator[ProducingBroker]:
    producer = kind.broker()
    yield producer
    await producer.close()


@pytest.fixture
async def pair(kind: Kind) -> AsyncIterator[tuple[ProducingBroker, ProducingBroker]]:
    """The brokers of two workers, connected, whose leases last."""
    first, second = kind.broker(600), kind.broker(600)
    await first.connect("first")
    await second.connect("second")
    yield first, second
    await first.close()
    await second.close()


async def test_a_job_ends_with_its_image_at_the_broker(
    tmp_path: Path, engine: FakeEngine, kind: Kind, producer: ProducingBroker
) -> None:
    async with worker(tmp_path, engine, kind.server) as front:
        chosen = {"overrides": {"#text": "fox"}, "metadata": {"order": 7}, "timeout": 60, "previews": True}
        assert await producer.put("first", body(draw(), **chosen), owner="shop")
        assert not await producer.put("first", body(draw(), **chosen)), "its id is known"
        ended = await result(producer, "first")
        assert ended["metadata"] == {"order": 7} and "fox" in json.dumps(ended["parameters"])
        assert ended["status"] == "completed" and ended["id"] == "first"
        assert ended["output"][0]["data"], "without a store or a public address the image itself"
        assert await producer.depth() == 0

        async def is_let_go() -> bool:
            return bool((await front.http.get("/health")).json()["broker"]["held"] == 0)

        await until(is_let_go)  # the result is written before the message is acknowledged
        health = (await front.http.get("/health")).json()["broker"]
        assert health.keys() == {"broker", "state", "held"} and health["state"] == "connected"
        assert health["broker"].endswith(f"://127.0.0.1:{kind.server.port}")
    assert len(engine.runs) == 1


async def test_news_have_the_events_of_all_jobs_to_their_ends(
    tmp_path: Path, engine: FakeEngine, kind: Kind, producer: ProducingBroker
) -> None:
    async with worker(tmp_path, engine, kind.server):
        (start,) = await producer.news("", 1)
        assert start.job_id == ""
        position, ends = start.position, set()
        for name in ("first", "second"):
            await producer.put(name, body(draw(name)))

        async def are_both_over() -> bool:
            nonlocal position
            for news in await producer.news(position, 0.05):
                position, event = news.position, json.loads(news.event)
                assert event["id"] == news.job_id
                if event["status"] == "completed":
                    ends.add(news.job_id)
            return ends == {"first", "second"}

        await until(are_both_over)
        assert json.loads((await producer.events("first"))[-1])["status"] == "completed"
        assert await producer.news(position, 0.01) == [] and await producer.events("unknown") == []
        sizes = await producer.result_sizes(["first", "unknown", "second"])
        assert sizes == {name: len(await producer.result(name) or b"") for name in ("first", "second")}


async def test_more_commands_than_connections_wait_for_one(kind: Kind, producer: ProducingBroker) -> None:
    await producer.put("one", b"{}")
    (start,) = await producer.news("", 1)
    waiting = asyncio.create_task(producer.news(start.position, 5))
    assert set(await asyncio.gather(*(producer.depth() for _ in range(300)))) == {1}
    waiting.cancel()


async def test_what_no_worker_can_run_ends_with_the_reason(
    tmp_path: Path, engine: FakeEngine, kind: Kind, producer: ProducingBroker
) -> None:
    async with worker(tmp_path, engine, kind.server):
        await producer.put("wrong", body({"1": {"class_type": "NoSuchNode", "inputs": {}}}))
        await producer.put("garbage", b"\xff{")
        await producer.put("stored", json.dumps({"input": {"workflow": "portrait"}}).encode())
        wrong = await result(producer, "wrong")
        assert wrong["status"] == "failed" and wrong["error"]["problems"][0]["class_type"] == "NoSuchNode"
        assert (await result(producer, "garbage"))["error"]["code"] == "request_rejected"
        assert (await result(producer, "stored"))["error"]["code"] == "workflow_not_found"
    assert not engine.runs


async def test_a_cancelled_job_ends_wherever_it_is(
    tmp_path: Path, engine: FakeEngine, kind: Kind, producer: ProducingBroker
) -> None:
    async with worker(tmp_path, engine, kind.server, constants={"broker": {"num_held": 1}}) as front:
        await producer.put("running", body(wait()))
        await producer.put("queued", body(draw()))
        await front.until("running", "generating")
        await producer.cancel("queued")
        await producer.cancel("running")
        assert (await result(producer, "running"))["status"] == "cancelled"
        assert (await result(producer, "queued"))["status"] == "cancelled"
    assert len(engine.runs) == 1


async def test_the_server_may_be_killed_while_a_job_runs(
    tmp_path: Path, engine: FakeEngine, kind: Kind, producer: ProducingBroker
) -> None:
    async with worker(tmp_path, engine, kind.server) as front:
        await producer.put("one", body(wait()))
        await front.until("one", "generating")
        await producer.put("two", body(draw()))
        kind.server.kill()

        async def is_reported() -> bool:
            ready = (await front.http.get("/ready")).json()
            return bool(ready["status"] == "ready" and ready["broker"]["state"] == "unreachable")

        await until(is_reported)
        engine.release()
        assert await front.until("one", "completed")
        await kind.server.start()
        assert (await result(producer, "one"))["status"] == "completed"
        assert (await result(producer, "two"))["status"] == "completed"
    assert len(engine.runs) == 2 and await producer.depth() == 0


@pytest.mark.parametrize("skew_seconds", [-7200.0, 7200.0])
async def test_a_worker_whose_clock_is_wrong_takes_jobs_with_time_limits(
    tmp_path: Path,
    engine: FakeEngine,
    kind: Kind,
    producer: ProducingBroker,
    skew_seconds: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + skew_seconds)
    await producer.put("late", body(draw("late"), expires=0.1))
    await asyncio.sleep(0.2)  # its time is over before any worker looks
    async with worker(tmp_path, engine, kind.server):
        late = await result(producer, "late")
        assert late["status"] == "timeout" and late["error"]["code"] == "job_expired"
        await producer.put("one", body(draw(), expires=600))
        assert (await result(producer, "one"))["status"] == "completed"
    assert len(engine.runs) == 1


async def test_a_lease_that_is_not_renewed_goes_to_another_who_holds_it_then(
    kind: Kind, producer: ProducingBroker
) -> None:
    first, second = kind.broker(), kind.broker()
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
    for broker in (first, second):
        await broker.close()


async def test_a_job_that_is_given_back_is_delivered_at_once_and_not_counted(
    pair: tuple[ProducingBroker, ProducingBroker],
) -> None:
    first, second = pair
    await first.put("one", b"{}")
    await first.put("urgent", b"{}", priority=1)
    depths = {depth.priority: depth.num_jobs for depth in await first.depths()}
    assert depths == {"high": 1, "normal": 1, "low": 0}
    held = await received(first)
    assert held.job_id == "urgent"
    assert await first.give_back(held.receipt)
    again = await received(second)
    assert (again.job_id, again.num_deliveries) == ("urgent", 1)


async def test_receipts_of_the_broker_before_end_no_lease_and_their_results_count(
    kind: Kind, pair: tuple[ProducingBroker, ProducingBroker], request: pytest.FixtureRequest
) -> None:
    first, _second = pair
    name = request.node.callspec.params["kind"]
    own = {"gateway": "redis", "postgresql": "database", "sqlite": "database"}.get(name, name)
    foreign = [receipt for of, receipt in RECEIPTS.items() if of != own]
    if isinstance(kind.server, LocalGateway):
        foreign = [await kind.server.sealed("workers.first", "two", receipt) for receipt in foreign]
    await first.put("one", b"{}")
    held = await received(first)
    assert await first.renew([held.receipt, *foreign]) == {held.receipt}
    assert [await first.give_back(receipt) for receipt in foreign] == [True] * len(foreign)
    await first.put("two", b"{}")
    await first.finish("two", foreign[0], b'"before"')
    await first.bury(Delivery("two", b"{}", foreign[1]), "why", b'{"status": "failed"}')
    assert await first.result("two") == b'"before"' and await first.renew([held.receipt]) == {held.receipt}
