"""BrokerConnection: whether the broker answers, and the calls that are repeated until it does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from darkroom.worker.concurrency.backoff import Backoff
from darkroom.worker.sources.broker import Broker, BrokerRefused, BrokerUnreachable

RECONNECT = Backoff(first_seconds=0.5, longest_seconds=15.0, jitter=0.3)
NOT_CONNECTED = "not connected yet"

log = structlog.get_logger("sources")

T = TypeVar("T")


class BrokerConnection:
    """State of the connection to a broker. Whoever calls the broker reports the outcome: `reached`, `lost`, `pause`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._problem = NOT_CONNECTED
        self._num_failures = 0
        self.is_refused = False  # the broker takes this worker's credentials no longer

    @property
    def problem(self) -> str:
        """The reason why the broker cannot be reached; empty if it can."""
        return self._problem

    def report(self) -> dict[str, object]:
        """Return the broker and the state of the connection, for `/health`."""
        state = {"state": "unreachable", "reason": self._problem} if self._problem else {"state": "connected"}
        return {"broker": self._broker.name, **state}

    async def until_reached(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a call to the broker, made again and again while it is unreachable.

        Raises BrokerRefused.
        """
        while True:
            try:
                result = await call()
            except BrokerUnreachable as error:
                await self.pause(error)
                if self.is_refused:
                    raise
            else:
                self.reached()
                return result

    async def pause(self, error: BrokerUnreachable) -> None:
        """Note that a call failed, and wait before the next; longer after each failure in a row."""
        self.lost(error)
        if self.is_refused:
            return
        self._num_failures += 1
        await asyncio.sleep(RECONNECT.seconds(self._num_failures))

    def lost(self, error: BrokerUnreachable) -> None:
        """Note that a call failed; logged once for all failures in a row."""
        if isinstance(error, BrokerRefused):
            if not self.is_refused:
                log.error("broker refuses this worker, no more jobs are asked for", reason=str(error))
            self.is_refused = True
        elif not self._problem or self._problem == NOT_CONNECTED:
            log.error("broker unreachable", reason=str(error))
        self._problem = str(error)

    def reached(self) -> None:
        """Note that a call succeeded."""
        if self._problem:
            log.info("broker connected", broker=self._broker.name)
        self._problem, self._num_failures = "", 0
