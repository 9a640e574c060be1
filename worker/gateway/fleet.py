"""Fleet: the workers that have announced themselves at the broker, and the node lists of all their engines."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from darkroom.worker.json.values import WRONG_SHAPE, JsonObject
from darkroom.worker.sources.broker import BrokerUnreachable, Producer

log = structlog.get_logger("fleet")

FRESH_SECONDS = 5.0
MAX_LISTS = 32
"""Different node lists of a fleet that a gateway holds. Workers check what may pass by another one."""

OURS, FALLBACK = "nodes", "fallback_nodes"  # fields of an entry


@dataclass(frozen=True, slots=True)
class NodeLists:
    """Node lists of the fleet, those of engines before those of fallbacks.

    `has_unlisted`: a worker has a fallback whose nodes are not known yet, since it was never started, or there are more
    lists than a gateway holds.
    """

    lists: tuple[JsonObject, ...] = ()
    has_unlisted: bool = False


@dataclass(slots=True)
class _Known:
    """Workers and node lists as last read from the broker. `at` is monotonic."""

    at: float = float("-inf")
    num_workers: int = 0
    lists: tuple[str, ...] = ()
    has_unlisted: bool = False
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

    async def node_lists(self) -> NodeLists:
        """Return the node lists of the fleet, those of the last worker if none is there; none if none was ever."""
        await self._refresh()
        return NodeLists(tuple(self._nodes[name] for name in self._known.lists), self._known.has_unlisted)

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
                all_names = _names_of(entries)
                names = all_names[:MAX_LISTS]
                for name in names:
                    if name not in self._nodes and (packed := await self._producer.nodes(name)) is not None:
                        self._nodes[name] = await asyncio.to_thread(_unpacked, name, packed)
            except BrokerUnreachable:
                self._known.at = time.monotonic()
                return
            there = tuple(entry for entry in entries if not entry.get("is_last"))
            lists = tuple(name for name in names if name in self._nodes)
            has_unlisted = len(all_names) > len(names) or any(
                entry.get("has_fallback") and not entry.get(FALLBACK) for entry in entries
            )
            self._known = _Known(time.monotonic(), len(there), lists, has_unlisted, there)
            self._nodes = {name: self._nodes[name] for name in lists}


def _names_of(entries: Sequence[JsonObject]) -> tuple[str, ...]:
    """Return the digests of node lists, each once, those of fallbacks last."""
    found = [str(entry[field]) for field in (OURS, FALLBACK) for entry in entries if entry.get(field)]
    return tuple(dict.fromkeys(found))


def _unpacked(name: str, packed: bytes) -> dict[str, Any]:
    """Return the classes of a packed node list; none of one that a worker announced in another form."""
    try:
        found: dict[str, Any] = json.loads(gzip.decompress(packed))
        if all(isinstance(declared, dict) for declared in found.values()):
            return found
        reason = "a class that is no object"
    except (EOFError, OSError, zlib.error, *WRONG_SHAPE) as error:
        reason = str(error)
    log.warning("node list cannot be read", nodes=name, reason=reason)
    return {}
