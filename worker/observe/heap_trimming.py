"""Memory that large documents have left in the heap of the front goes back to the system."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from machine.heap import trim_heap
from worker.observe.memory import MachineMemory

LOOK_SECONDS: Final = 10.0
GROWTH_BYTES: Final = 48 * 1024 * 1024


class HeapTrimming:
    """Trims the heap whenever this process has grown by GROWTH_BYTES since the last time.

    The C library keeps what a thread has freed, so the documents of one hour would be held for ever.
    """

    def __init__(self, trim: Callable[[], None] = trim_heap, memory: MachineMemory | None = None) -> None:
        self._trim = trim
        self._memory = memory or MachineMemory()
        self._held_bytes: int | None = None  # after the last trimming

    async def run_forever(self) -> None:
        """Look from time to time."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Trim if the process has grown. What it holds afterwards is the new measure."""
        held = self._memory.process_bytes(os.getpid())
        if held is None:
            return
        if self._held_bytes is None or held < self._held_bytes:
            self._held_bytes = held
        elif held >= self._held_bytes + GROWTH_BYTES:
            await asyncio.to_thread(self._trim)
            self._held_bytes = self._memory.process_bytes(os.getpid())
