"""FamilyLearning: asks the engines for the families of their models."""

from __future__ import annotations

import asyncio
import contextlib

from darkroom.modifiers.registry import ModifierRegistry
from darkroom.worker.engines.pool import EnginePool
from darkroom.worker.errors import EngineUnreachable
from darkroom.worker.prompts.modifier_defaults import KINDS, checkpoints_of, find_all_defaults

LEARN_SECONDS = 60.0  # between looks at the families of model files


class FamilyLearning:
    """Learns families in advance, so that jobs can be priced and made while an engine is away."""

    def __init__(self, pool: EnginePool, modifiers: ModifierRegistry) -> None:
        self._pool = pool
        self._modifiers = modifiers

    async def run_forever(self) -> None:
        """Learn the families of files that are added while the worker runs."""
        while True:
            await asyncio.sleep(LEARN_SECONDS)
            for client in self._pool.clients_serving:
                if client.has_check:
                    with contextlib.suppress(EngineUnreachable):
                        await client.families.learn(KINDS)

    async def learn(self) -> None:
        """Learn the families of the engines' models, and what the modifiers use by default."""
        for client in self._pool.clients_serving:
            if not client.has_check:  # it has none
                continue
            with contextlib.suppress(EngineUnreachable):
                await client.families.learn(KINDS)
                checkpoints = checkpoints_of(await client.object_info())
                await find_all_defaults(client, self._modifiers, checkpoints, self._modifiers.names())
