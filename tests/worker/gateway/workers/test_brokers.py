"""Connections to the broker in the names of workers: one for each, closed when idle, and so many at most."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from darkroom.worker.errors import LimitReached
from darkroom.worker.gateway.workers import brokers
from darkroom.worker.gateway.workers.brokers import Worker, WorkerBrokers
from darkroom.worker.integrations.redis.streams import RedisBroker
from darkroom.worker.settings.broker import BrokerConfig


@dataclass
class Made:
    """The brokers that were made."""

    all: list[CountedBroker] = field(default_factory=list)

    def make(self) -> CountedBroker:
        self.all.append(CountedBroker())
        return self.all[-1]


class CountedBroker(RedisBroker):
    """A broker that notes when it is connected and closed."""

    def __init__(self) -> None:
        super().__init__(BrokerConfig.model_validate({"url": "redis://127.0.0.1:1"}))
        self.names: list[str] = []
        self.is_closed = False

    async def connect(self, consumer: str) -> None:
        await asyncio.sleep(0)
        self.names.append(consumer)

    async def close(self) -> None:
        self.is_closed = True


async def test_a_worker_has_one_connection_in_its_name_however_many_requests_it_makes() -> None:
    made = Made()
    held = WorkerBrokers(made.make)

    async def ask(worker: Worker) -> None:
        async with held.using(worker):
            await asyncio.sleep(0)

    await asyncio.gather(*(ask(Worker("token", name)) for name in ("one", "two") for _ in range(5)))
    assert sorted(broker.names for broker in made.all) == [["token.one"], ["token.two"]]
    await held.close()
    assert all(broker.is_closed for broker in made.all)


async def test_idle_connections_are_closed_and_those_in_use_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made()
    held = WorkerBrokers(made.make)
    async with held.using(Worker("token", "busy")):
        async with held.using(Worker("token", "idle")):
            pass
        monkeypatch.setattr(brokers, "IDLE_SECONDS", -1.0)
        async with held.using(Worker("token", "new")):
            pass
        assert [broker.is_closed for broker in made.all] == [False, True, False]


async def test_a_token_and_a_gateway_have_so_many_workers_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "MAX_OF_TOKEN", 2)
    monkeypatch.setattr(brokers, "MAX_WORKERS", 3)
    held = WorkerBrokers(Made().make)
    for name in ("one", "two", "one"):
        async with held.using(Worker("first", name)):
            pass
    with pytest.raises(LimitReached, match="workers_of_token"):
        async with held.using(Worker("first", "three")):
            pass
    async with held.using(Worker("second", "one")):
        pass
    with pytest.raises(LimitReached, match="workers"):
        async with held.using(Worker("third", "one")):
            pass
