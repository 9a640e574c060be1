"""SharedCalls: many who want the same thing at the same time wait for one call of it."""

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


class SharedCalls(Generic[Value]):
    """One who is cancelled leaves the others their call; it is cancelled when the last one has gone."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, _Call[Value]] = {}

    def is_under_way(self, key: Hashable) -> bool:
        return key in self._calls

    async def run(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        """The result (or error) of the call under way for `key`, else of a new one."""
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
                call.task.cancel()  # does nothing to one that is done
