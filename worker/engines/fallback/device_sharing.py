"""DeviceSharing: the memory of one device that an engine of ours and the fallback use in turn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import structlog

from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.fallback.sharing import DeviceUse, device_use, may_stay
from darkroom.worker.engines.watch import EngineState, WatchedEngine
from darkroom.worker.errors import EngineUnreachable

FREE_PAUSE_SECONDS = 0.1  # between two looks at an engine that was asked to release its memory
FREE_LOOKS = 10  # in which that memory may stay the same before nothing more is expected
MEASURE_SECONDS = 1.0  # between two looks at an engine's memory during a run

log = structlog.get_logger("engines")


class DeviceSharing:
    """Needs of both engines as they were measured, and what they hold that they cannot release.

    `watched` is the engine of ours on the device; `bytes_of` returns the memory of an engine's process, None where it
    is not known.
    """

    def __init__(self, watched: WatchedEngine, bytes_of: Callable[[EngineClient], int | None]) -> None:
        self.watched = watched
        self._bytes_of = bytes_of
        self._needed: dict[str, int] = {}  # by address: the most that an engine was measured to hold, in bytes
        self._least: dict[str, int] = {}  # by address: what an engine held after it had released all it could

    @property
    def own(self) -> EngineClient | None:
        """The engine of ours on the device; None for one that does not come back."""
        return None if self.watched.state is EngineState.FAILED else self.watched.client

    @contextlib.asynccontextmanager
    async def turn(self, running: EngineClient, other: EngineClient) -> AsyncIterator[None]:
        """Give `running` the device: `other` releases its memory first, unless both fit by their measured needs.

        The most that `running` holds until the block is left is its measured need from then on.
        """
        await self._make_room(running, other)
        measuring = asyncio.create_task(self._measure(running), name="device-use")
        try:
            yield
        finally:
            measuring.cancel()
        await self._look(running)

    async def _make_room(self, running: EngineClient, other: EngineClient) -> None:
        used = await self._look(other)
        if used is not None and (self._may_stay(used, running) or used.held_bytes <= self._least.get(other.url, 0)):
            return
        log.info("engine memory released", url=other.url, held_bytes=None if used is None else used.held_bytes)
        await other.calls.free()
        num_looks = 0
        while used is not None and num_looks < FREE_LOOKS and not self._may_stay(used, running):
            await asyncio.sleep(FREE_PAUSE_SECONDS)
            before, used = used, await self._use(other)
            num_looks = num_looks + 1 if used is not None and used.held_bytes >= before.held_bytes else 0
        if used is not None:
            self._least[other.url] = used.held_bytes

    def _may_stay(self, used: DeviceUse, running: EngineClient) -> bool:
        return may_stay(used.held_bytes, self._needed.get(running.url), used.total_bytes)

    async def _measure(self, client: EngineClient) -> None:
        while True:
            await asyncio.sleep(MEASURE_SECONDS)
            await self._look(client)

    async def _look(self, client: EngineClient) -> DeviceUse | None:
        """Return the memory that an engine holds now, and note it if that is more than ever."""
        used = await self._use(client)
        if used is not None:
            self._needed[client.url] = max(used.held_bytes, self._needed.get(client.url, 0))
        return used

    async def _use(self, client: EngineClient) -> DeviceUse | None:
        try:
            return device_use(await client.calls.system_stats(), self._bytes_of(client))
        except EngineUnreachable:
            return None
