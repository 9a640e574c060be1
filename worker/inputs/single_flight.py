"""Single-flight: concurrent callers with the same key wait for one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


@dataclass(slots=True)
class _Call(Generic[Value]):
    task: asyncio.Task[Value]
    num_waiting: int = 0


class SingleFlight(Generic[Value]):
    """Calls in flight by key. A cancelled caller leaves the call running for the others; the last one cancels it."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, _Call[Value]] = {}

    def is_in_flight(self, key: Hashable) -> bool:
        return key in self._calls

    async def run(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        """Return the result, or raise the error, of the call in flight for `key`; start one if there is none."""
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = _Call(asyncio.create_task(begin()))
        call.num_waiting += 1
        try:
            return await asyncio.shield(call.task)
        finally:
            call.num_waiting -= 1
            if call.num_waiting == 0 or call.task.done():
                if self._calls.get(key) is call:
                    del self._calls[key]
                call.task.cancel()  # no effect on a finished task
