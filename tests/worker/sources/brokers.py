"""Helpers of the tests of every broker: a worker that takes its jobs, bodies of jobs, waiting for results."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

from darkroom.worker.sources.broker import Broker, BrokerUnreachable, Delivery, Producer
from tests.fakes import FakeEngine
from tests.worker.running_front import RunningFront, running_front, until

LEASE_SECONDS = 1.0


class Server(Protocol):
    """A real server of a broker, which can be killed and started again."""

    url: str
    port: int

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of a worker that takes its jobs."""
        ...

    async def start(self) -> None: ...

    def kill(self) -> None: ...


class ProducingBroker(Broker, Producer, Protocol):
    """Both sides of a broker."""


@contextlib.asynccontextmanager
async def worker(folder: Path, engine: FakeEngine, server: Server, **changes: Any) -> AsyncIterator[RunningFront]:
    """Run a front that takes the jobs of this server, whose leases are short."""
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240
    broker = {**server.settings, "broker_lease_seconds": LEASE_SECONDS, **changes}
    async with running_front(folder, engine, **broker) as front:
        yield front


def body(workflow: dict[str, Any], **fields: Any) -> bytes:
    """Return the message of a job."""
    return json.dumps({"input": {"workflow_json": workflow, **fields}}).encode()


async def result(producer: Producer, job_id: str) -> dict[str, Any]:
    """Wait for the result of a job."""
    found: list[bytes] = []

    async def is_there() -> bool:
        with contextlib.suppress(BrokerUnreachable):  # it was killed a moment ago
            stored = await producer.result(job_id)
            found.extend([] if stored is None else [stored])
        return bool(found)

    await until(is_there)
    ended: dict[str, Any] = json.loads(found[0])
    return ended


async def received(broker: Broker, consumer: str = "") -> Delivery:
    """Wait for a delivery; connect under this name before, if there is one."""
    if consumer:
        await broker.connect(consumer)
    async with asyncio.timeout(30):
        while not (found := await broker.receive(1, [])):
            pass
    return found[0]
