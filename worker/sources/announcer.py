"""Announcer: what gateways learn of this worker, published at its broker: its facts and the nodes of its engines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from darkroom.worker.json.values import JsonObject
from darkroom.worker.sources.broker import Broker
from darkroom.worker.sources.fleet_entries import NodeList, entry_of

ListedNodes = Callable[[], Awaitable[JsonObject | None]]
"""Returns the node classes of an engine, None while they are not known."""


class Announcer:
    """Announcements of one worker. `fallback_nodes` lists those of its fallback; None: it has none.

    `facts` are those that routing uses (`worker/gateway/placing.py`).
    """

    def __init__(
        self,
        broker: Broker,
        node_list: Callable[[], Awaitable[JsonObject]],
        facts: Callable[[], JsonObject],
        fallback_nodes: ListedNodes | None = None,
    ) -> None:
        self._broker = broker
        self._node_list = node_list
        self._facts = facts
        self._fallback_nodes = fallback_nodes
        self._packed: dict[str, tuple[JsonObject, NodeList]] = {}  # as last announced, by the field of the entry

    async def announce(self, worker: str, models: Sequence[str]) -> None:
        """Announce the worker once; `models` are those that it used, the last one first.

        Raises EngineUnreachable and BrokerUnreachable.
        """
        lists = {"nodes": await self._listed("nodes", await self._node_list())}
        fallback = None if self._fallback_nodes is None else await self._fallback_nodes()
        if fallback is not None:
            lists["fallback_nodes"] = await self._listed("fallback_nodes", fallback)
        facts = {**self._facts(), "models": list(models), "has_fallback": self._fallback_nodes is not None}
        named = {field: one.id for field, one in lists.items()}
        await self._broker.announce(entry_of(worker, facts | named), {one.id: one.packed for one in lists.values()})

    async def _listed(self, field: str, nodes: JsonObject) -> NodeList:
        known = self._packed.get(field)
        if known is None or known[0] is not nodes:
            known = self._packed[field] = nodes, await asyncio.to_thread(NodeList.of, nodes)
        return known[1]
