"""WorkerBrokers: a connection to the broker for each worker that asks this gateway for jobs, in the worker's name.

So leases are those of the worker, whichever gateway it asks, and a job wakes one worker as it does without gateways.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final

from darkroom.worker.errors import LimitReached
from darkroom.worker.sources.broker import Broker

MAX_WORKERS: Final = 5000
MAX_OF_TOKEN: Final = 500
IDLE_SECONDS: Final = 120.0
"""Seconds after which the connection of a worker that has not asked is closed."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker by the name of its token and its own id, which it keeps over restarts."""

    token: str
    id: str

    @property
    def name(self) -> str:
        """Name of the consumer at the broker."""
        return f"{self.token}.{self.id}"


@dataclass(eq=False, slots=True)
class _Open:
    """A worker's broker. `num_users`: requests that use it now."""

    broker: Broker
    is_connected: bool = False
    num_users: int = 0
    used_at: float = 0.0  # monotonic
    connecting: asyncio.Lock = field(default_factory=asyncio.Lock)


class WorkerBrokers:
    """Owner of the brokers. `make` returns a new one, not connected yet."""

    def __init__(self, make: Callable[[], Broker]) -> None:
        self._make = make
        self._open: dict[Worker, _Open] = {}
        self._swept_at = time.monotonic()

    @contextlib.asynccontextmanager
    async def using(self, worker: Worker) -> AsyncIterator[Broker]:
        """Hold the broker of a worker, connected in its name. Raises BrokerUnreachable, LimitReached."""
        await self._close_idle()
        opened = self._open.get(worker)
        if opened is None:
            self._check_number(worker)
            opened = self._open[worker] = _Open(self._make())
        opened.num_users += 1
        try:
            async with opened.connecting:
                if not opened.is_connected:
                    await opened.broker.connect(worker.name)
                    opened.is_connected = True
            yield opened.broker
        finally:
            opened.num_users -= 1
            opened.used_at = time.monotonic()

    async def close(self) -> None:
        """Disconnect all workers."""
        brokers = [opened.broker for opened in self._open.values()]
        self._open.clear()
        await asyncio.gather(*(broker.close() for broker in brokers))

    def _check_number(self, worker: Worker) -> None:
        num_of_token = sum(other.token == worker.token for other in self._open)
        if num_of_token >= MAX_OF_TOKEN:
            raise LimitReached("workers_of_token", num_of_token + 1, MAX_OF_TOKEN, retry_after_seconds=IDLE_SECONDS)
        if len(self._open) >= MAX_WORKERS:
            raise LimitReached("workers", len(self._open) + 1, MAX_WORKERS, retry_after_seconds=IDLE_SECONDS)

    async def _close_idle(self) -> None:
        """Close the connections of workers that have not asked for a while, at most once in that time."""
        before = time.monotonic() - IDLE_SECONDS
        if self._swept_at > before:
            return
        self._swept_at = time.monotonic()
        idle = [worker for worker, one in self._open.items() if not one.num_users and one.used_at < before]
        brokers = [self._open.pop(worker).broker for worker in idle]
        await asyncio.gather(*(broker.close() for broker in brokers))
