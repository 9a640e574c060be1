"""Memory that large documents have left in the heap of the front goes back to the system."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from darkroom.host.heap import trim_heap
from darkroom.worker.observe.memory import MachineMemory

LOOK_SECONDS: Final = 5.0
GROWTH_BYTES: Final = 48 * 1024 * 1024
LEAST_BYTES: Final = 8 * 1024 * 1024
MAX_PAUSE_LOOKS: Final = 32


class HeapTrimming:
    """Trims the heap while this process holds GROWTH_BYTES more than at its least.

    The C library keeps what a thread has freed, so the documents of one hour would be held for ever. A trimming that
    returns little (the memory is in use) is followed by a pause, twice as long each time.
    """

    def __init__(self, trim: Callable[[], None] = trim_heap, memory: MachineMemory | None = None) -> None:
        self._trim = trim
        self._memory = memory or MachineMemory()
        self._least_bytes: int | None = None
        self._pause_looks = 0  # of the last pause
        self._looks_left = 0

    async def run_forever(self) -> None:
        """Look from time to time."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Trim if the process has grown, unless a trimming has just returned little."""
        held = self._memory.process_bytes(os.getpid())
        if held is None:
            return
        if self._least_bytes is None or held < self._least_bytes:
            self._least_bytes = held
        if held < self._least_bytes + GROWTH_BYTES:
            self._pause_looks = self._looks_left = 0
        elif self._looks_left:
            self._looks_left -= 1
        else:
            await asyncio.to_thread(self._trim)
            left = self._memory.process_bytes(os.getpid()) or held
            has_helped = held - left >= LEAST_BYTES
            self._pause_looks = 0 if has_helped else min(2 * self._pause_looks + 1, MAX_PAUSE_LOOKS)
            self._looks_left = self._pause_looks
