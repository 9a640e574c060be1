"""Bandwidth limit shared by all downloads: a token bucket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

BURST_SECONDS = 0.25


class Throttle:
    """Pauses that keep the sum of all downloads below a rate. A rate of 0 is no limit."""

    def __init__(self, bytes_per_second: float, now: Callable[[], float] | None = None) -> None:
        self._rate = bytes_per_second
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._free_at = 0.0  # the time at which what was taken so far has passed

    async def take(self, num_bytes: int) -> None:
        """Wait until the given bytes fit into the rate."""
        seconds = self.pause_for(num_bytes)
        if seconds > 0:
            await asyncio.sleep(seconds)

    def pause_for(self, num_bytes: int) -> float:
        """Take bytes and return the seconds to wait before the next ones."""
        if self._rate <= 0:
            return 0.0
        now = self._now()
        self._free_at = max(self._free_at, now - BURST_SECONDS) + num_bytes / self._rate
        return max(0.0, self._free_at - now)
