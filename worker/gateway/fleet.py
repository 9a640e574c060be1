"""Fleet: the workers that have announced themselves at the broker, and the node lists of their engines."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from dataclasses import dataclass
from typing import Any

from darkroom.worker.json.values import JsonObject
from darkroom.worker.sources.broker import BrokerUnreachable, Producer

FRESH_SECONDS = 5.0


@dataclass(slots=True)
class _Known:
    """Workers and node lists as last read from the broker. `at` is monotonic."""

    at: float = float("-inf")
    num_workers: int = 0
    lists: tuple[str, ...] = ()
    entries: tuple[JsonObject, ...] = ()


class Fleet:
    """Node lists by digest, fetched once each. What was last known stays while the broker is unreachable."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._known = _Known()
        self._nodes: dict[str, JsonObject] = {}
        self._refreshing = asyncio.Lock()

    async def num_workers(self) -> int:
        """Return the number of workers that have announced themselves lately."""
        await self._refresh()
        return self._known.num_workers

    async def node_lists(self) -> list[JsonObject]:
        """Return the node lists of the fleet, those of the last worker if none is there; empty if none was ever."""
        await self._refresh()
        return [self._nodes[name] for name in self._known.lists]

    async def entries(self) -> tuple[JsonObject, ...]:
        """Return the announcements of the workers that are present."""
        await self._refresh()
        return self._known.entries

    async def _refresh(self) -> None:
        async with self._refreshing:
            if time.monotonic() - self._known.at < FRESH_SECONDS:
                return
            try:
                entries = [json.loads(entry) for entry in await self._producer.fleet()]
                names = tuple(dict.fromkeys(str(entry["nodes"]) for entry in entries))
                for name in names:
                    if name not in self._nodes and (packed := await self._producer.nodes(name)) is not None:
                        self._nodes[name] = await asyncio.to_thread(_unpacked, packed)
            except BrokerUnreachable:
                self._known.at = time.monotonic()
                return
            there = tuple(entry for entry in entries if not entry.get("is_last"))
            lists = tuple(name for name in names if name in self._nodes)
            self._known = _Known(time.monotonic(), len(there), lists, there)
            self._nodes = {name: self._nodes[name] for name in lists}


def _unpacked(packed: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(packed))
    return found
