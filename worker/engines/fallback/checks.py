"""FallbackChecks: what the fallback would say of a workflow, also while it is not started."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from darkroom.worker.concurrency.off_loop import needs_thread, off_loop
from darkroom.worker.engines.choices import NOT_IN_LIST
from darkroom.worker.engines.fallback.fallback_engine import FallbackEngine
from darkroom.worker.engines.graph_check import find_problems
from darkroom.worker.errors import EngineUnreachable, NotReady, RequestRejected
from darkroom.worker.json.values import JsonObject

START_WAIT_SECONDS = 60.0
"""For which a request may wait for the first start, before which nothing is known of the fallback's nodes."""


class FallbackChecks:
    """Checks of workflows by the node classes that the fallback has, or had when it was started last."""

    has_check = False

    def __init__(self, engine: FallbackEngine) -> None:
        self._engine = engine

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
        known = await self._engine.nodes()
        return known if known is not None else await self._from_start()

    async def check(self, prompt: JsonObject, pending_files: Collection[str] = ()) -> None:
        """Check a prompt. Raises RequestRejected with every problem, NotReady, EngineUnreachable.

        Lists of files may have changed since the fallback was up: where only these refuse a prompt it is started.
        """
        if self._engine.client is None:
            nodes = await self.known_object_info()
            found = await off_loop(needs_thread(prompt), find_problems, prompt, nodes, pending_files)
            if not found.listed:
                return
            if any(problem.type != NOT_IN_LIST for problem in found.listed):
                raise RequestRejected(found.listed, num_unlisted=found.num_unlisted)
            await self._from_start()
        async with self._engine.engine() as client:
            await client.check(prompt, pending_files)

    async def _from_start(self) -> Mapping[str, Any]:
        """Start the fallback and return its node classes. Raises NotReady, EngineUnreachable."""
        starting = asyncio.ensure_future(self._start())
        done, _ = await asyncio.wait({starting}, timeout=START_WAIT_SECONDS)
        if not done:  # it goes on for the next request
            starting.add_done_callback(lambda task: task.cancelled() or task.exception())
            raise NotReady("The fallback engine is starting", retry_after_seconds=10)
        return starting.result()

    async def _start(self) -> Mapping[str, Any]:
        async with self._engine.engine() as client:
            return await client.object_info()
