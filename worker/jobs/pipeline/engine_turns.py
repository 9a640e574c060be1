"""EngineTurns: the engine that runs a job, one of ours or the fallback, and room for it on the device they share."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.client.lost import EngineLost
from darkroom.worker.engines.fallback.fallback_engine import FallbackEngine
from darkroom.worker.engines.pool import EnginePool
from darkroom.worker.errors import EngineUnreachable
from darkroom.worker.storage.job import Job


class EngineTurns:
    """Engines of ours in `pool`, and the fallback, whose prompt has its device for itself. None: there is none."""

    def __init__(self, pool: EnginePool, fallback: FallbackEngine | None) -> None:
        self._pool = pool
        self._fallback = fallback

    @contextlib.asynccontextmanager
    async def any_up(self, job: Job) -> AsyncIterator[EngineClient]:
        """Wait for an engine that knows a job's node classes. Raises EngineUnreachable."""
        if not job.request.engine:
            yield await self._pool.any_up()
            return
        async with self._needed_fallback().engine() as engine:
            yield engine

    async def holder_of(self, prompt_id: str) -> EngineClient | None:
        """Return the engine that has a prompt which may have been sent before, None if none has.

        Raises EngineLost when an engine does not reply.
        """
        beside = None if self._fallback is None else self._fallback.client
        for engine in [*self._pool.clients_up, *([] if beside is None else [beside])]:
            try:
                if await engine.prompts.has_prompt(prompt_id):
                    return engine
            except EngineUnreachable as error:
                raise EngineLost(error.message) from None
        return None

    @contextlib.asynccontextmanager
    async def engine(self, job: Job, holder: EngineClient | None) -> AsyncIterator[EngineClient]:
        """Hold a slot of `holder`, which has the job's prompt already, or of the engine whose turn comes first.

        Raises EngineUnreachable, EngineLost.
        """
        if job.request.engine:
            async with self._fallback_slot(self._needed_fallback(), job) as engine:
                yield engine
            return
        async with (
            self._pool.engine(job.order, only=holder, is_alone=job.runs_alone) as engine,
            self._device_of(engine),
        ):
            yield engine

    @contextlib.asynccontextmanager
    async def _fallback_slot(self, fallback: FallbackEngine, job: Job) -> AsyncIterator[EngineClient]:
        async with contextlib.AsyncExitStack() as held:
            await held.enter_async_context(fallback.engine())  # it stays while the job waits
            sharing = fallback.sharing
            own = None if sharing is None else sharing.own
            if own is not None:
                await held.enter_async_context(self._pool.kept_idle(own, job.order))
            engine = await held.enter_async_context(fallback.slot(job.order))
            if sharing is not None and own is not None:
                await held.enter_async_context(sharing.turn(engine, own))
            yield engine

    @contextlib.asynccontextmanager
    async def _device_of(self, engine: EngineClient) -> AsyncIterator[None]:
        """Give an engine of ours the device that the fallback shares with it, if that is up."""
        fallback = self._fallback
        sharing = None if fallback is None else fallback.sharing
        if fallback is None or sharing is None or sharing.own is not engine:
            yield
            return
        other = await fallback.idle_client()
        async with contextlib.nullcontext() if other is None else sharing.turn(engine, other):
            yield

    def _needed_fallback(self) -> FallbackEngine:
        if self._fallback is None:
            message = "The job was accepted for the fallback engine, and FALLBACK_ENGINE is not set any more"
            raise EngineUnreachable(message)
        return self._fallback
