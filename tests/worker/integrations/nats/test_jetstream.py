"""Jobs from NATS JetStream with a real server, beyond what every broker does (`test_every_broker.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
from pydantic import SecretStr

from darkroom.worker.integrations.nats.jetstream import NatsBroker
from darkroom.worker.integrations.nats.leases import key_of
from darkroom.worker.settings.broker import BrokerConfig
from darkroom.worker.sources.broker import BrokerUnreachable, JobTooLarge
from tests.worker.running_front import until
from tests.worker.sources.brokers import LEASE_SECONDS, received
from tests.worker.sources.servers import NatsServer, nats_server


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


async def test_workers_that_start_at_once_share_what_they_make(server: NatsServer) -> None:
    fleet = [broker_of(server) for _ in range(16)]
    try:
        await asyncio.gather(*(broker.connect(f"worker-{number}") for number, broker in enumerate(fleet)))
        assert [await broker.depth() for broker in fleet] == [0] * len(fleet)
    finally:
        await asyncio.gather(*(broker.close() for broker in fleet))


async def store_result(server: NatsServer, job_id: str, stored: bytes) -> None:
    """Store a result by the server's own client."""
    connection = await nats.connect(server.url)
    results = await connection.jetstream().key_value("darkroom-results")
    await results.put(key_of(job_id), stored)
    await connection.close()


async def test_a_job_that_comes_back_after_its_result_is_not_made_twice(server: NatsServer) -> None:
    broker = broker_of(server)
    await broker.put("one", b"{}")
    await received(broker, "first")  # whose acknowledgement the server forgets
    await store_result(server, "one", b'"done"')

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
    monkeypatch.setattr("darkroom.worker.integrations.nats.jetstream.CONNECT_SECONDS", 0.3)
    monkeypatch.setattr("darkroom.worker.integrations.nats.jetstream.CONNECT_AGAIN_SECONDS", 0.1)
    server.kill()
    asked = [producer.depth() for _ in range(5)]
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(answer) for answer in answers} == {BrokerUnreachable}
    await server.start()

    async def is_reached() -> bool:
        with contextlib.suppress(BrokerUnreachable):
            return await producer.depth() == 0
        return False

    await until(is_reached)
