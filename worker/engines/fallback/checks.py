"""FallbackChecks: what the fallback would say of a workflow, also while it is not started."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from darkroom.worker.concurrency.off_loop import needs_thread, off_loop
from darkroom.worker.engines.choices import with_hints
from darkroom.worker.engines.fallback.fallback_engine import FallbackEngine
from darkroom.worker.engines.fallback.partners import find_partner_problems
from darkroom.worker.engines.graph_check import find_problems
from darkroom.worker.errors import EngineUnreachable, NotReady, RequestRejected
from darkroom.worker.json.values import JsonObject

START_WAIT_SECONDS = 60.0
"""For which a request may wait for a start of the fallback."""

FOREIGN_WAIT_SECONDS = 3.0
"""For which a request may wait for a fallback that others start."""


class FallbackChecks:
    """Checks of workflows by the node classes that the fallback has, or had when it was started last.

    `partner_keys` are the names of the keys that the request brings for partner nodes.
    """

    has_check = False

    def __init__(self, engine: FallbackEngine, partner_keys: Collection[str]) -> None:
        self._engine = engine
        self._partner_keys = partner_keys

    async def known_object_info(self) -> Mapping[str, Any]:
        """Return the fallback's node classes; start it where they are not known yet.

        Raises NotReady while that takes long, EngineUnreachable when it does not start.
        """
        client = self._engine.client
        if client is not None:
            try:
                return await client.known_object_info()
            except EngineUnreachable:  # it ended just now
                pass
        known = await self._engine.nodes.last()
        return known if known is not None else await self._from_start()

    async def check(self, prompt: JsonObject, pending_files: Collection[str] = ()) -> None:
        """Check a prompt. Raises RequestRejected with every problem, NotReady, EngineUnreachable.

        A remembered list accepts; it refuses for a short time alone, since packs and files may have been added: later
        the fallback is started and decides.
        """
        await self._check_nodes(prompt, pending_files)
        nodes = await self.known_object_info()
        may_send = self._engine.launch.may_send
        problems = find_partner_problems(prompt, nodes, self._partner_keys, may_send=may_send)
        if problems:
            raise RequestRejected(problems)

    async def _check_nodes(self, prompt: JsonObject, pending_files: Collection[str]) -> None:
        if self._engine.client is None:
            nodes = await self.known_object_info()
            found = await off_loop(needs_thread(prompt), find_problems, prompt, nodes, pending_files)
            if not found.listed:
                return
            if self._engine.nodes.is_fresh:
                hinted = await asyncio.to_thread(with_hints, found.listed, nodes)
                raise RequestRejected(hinted, num_unlisted=found.num_unlisted)
            await self._from_start()
        async with self._engine.engine() as client:
            try:
                await client.check(prompt, pending_files)
            finally:  # which reads the list anew before it refuses
                await self._engine.nodes.keep(client.facts.last_object_info)

    async def _from_start(self) -> Mapping[str, Any]:
        """Start the fallback and return its node classes. Raises NotReady, EngineUnreachable."""
        starting = asyncio.ensure_future(self._start())
        is_started_here = self._engine.launch.target.is_started_here
        limit = START_WAIT_SECONDS if is_started_here else FOREIGN_WAIT_SECONDS
        done, _ = await asyncio.wait({starting}, timeout=limit)
        if not done:  # it goes on for the next request
            starting.add_done_callback(lambda task: task.cancelled() or task.exception())
            if not is_started_here:
                raise EngineUnreachable("The fallback engine does not answer; this worker does not start it")
            raise NotReady("The fallback engine is starting", retry_after_seconds=10)
        return starting.result()

    async def _start(self) -> Mapping[str, Any]:
        async with self._engine.engine() as client:
            return await client.object_info()
