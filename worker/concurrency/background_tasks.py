"""BackgroundTasks: tasks that run beside their owner until they end or the owner closes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import structlog

CANCEL_AGAIN_SECONDS = 2.0  # long enough for what a task does at its end
CLOSE_SECONDS = 10.0

log = structlog.get_logger("tasks")


class BackgroundTasks:
    """Owner of running tasks. `on_failed` is called with a task that ended with an exception, and the exception."""

    def __init__(self, on_failed: Callable[[asyncio.Task[None], BaseException], None]) -> None:
        self._on_failed = on_failed
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        return iter(list(self._tasks))

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str | None = None) -> None:
        """Run a coroutine as a task."""
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def close(self, patience_seconds: float = CLOSE_SECONDS) -> None:
        """Cancel all tasks, and wait until they have ended, for `patience_seconds` at most.

        A task is cancelled again and again: a library's `except` may swallow one cancellation, as may
        `asyncio.wait_for` of Python 3.11 where what it waits for ends at the same moment.
        """
        clock = asyncio.get_running_loop().time
        ends_at = clock() + patience_seconds
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(set(self._tasks), timeout=min(CANCEL_AGAIN_SECONDS, patience_seconds))
            await asyncio.sleep(0)  # for the callbacks of those that ended
            if self._tasks and clock() >= ends_at:
                log.error("tasks left running", tasks=sorted(task.get_name() for task in self._tasks))
                return

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failed(task, error)
