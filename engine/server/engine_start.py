"""The engine, built beside the server: importing torch takes longer than answering the first request.

The server listens first; whoever needs the engine awaits `EngineStart.engine()`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from darkroom.engine.settings import EngineSettings

if TYPE_CHECKING:
    from darkroom.engine.engine import Engine

CLOSE_SECONDS = 5.0

log = logging.getLogger(__name__)


def build_engine(settings: EngineSettings) -> Engine:
    """Import the engine, and torch with it, and build it. Takes seconds; never called on the event loop.

    Without the garbage collector, which would walk a million new objects again and again and find nothing.
    """
    gc.disable()
    try:
        from darkroom.engine.engine import Engine

        return Engine(settings)
    finally:
        gc.enable()


class EngineStart:
    """Builds the engine on a thread of its own, once. `on_failure` is called on the loop when that fails."""

    def __init__(
        self,
        settings: EngineSettings,
        on_failure: Callable[[BaseException], None],
        build: Callable[[EngineSettings], Engine] = build_engine,
    ) -> None:
        self.is_stuck = False
        self._settings = settings
        self._on_failure = on_failure
        self._build = build
        self._steps: list[Callable[[Engine], None]] = []
        self._engine: asyncio.Future[Engine] = asyncio.get_running_loop().create_future()

    def then(self, step: Callable[[Engine], None]) -> None:
        """Add an action on the same thread, before the engine counts as built. Called before `begin`."""
        self._steps.append(step)

    def begin(self) -> None:
        threading.Thread(target=self._work, args=(self._engine.get_loop(),), name="engine-start", daemon=True).start()

    async def engine(self) -> Engine:
        """Return the engine, once it is built. Raises the error of its construction."""
        return await asyncio.shield(self._engine)

    def engine_now(self) -> Engine | None:
        """Return the engine if it is built already."""
        is_built = self._engine.done() and not self._engine.cancelled() and self._engine.exception() is None
        return self._engine.result() if is_built else None

    async def close(self) -> None:
        """Stop what runs and close the engine, if there is one; `is_stuck` tells afterwards if a node did not end."""
        engine = self.engine_now()
        if engine is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.to_thread(engine.close)
        except TimeoutError:
            self.is_stuck = True
            log.error("the running node did not stop within %g s", CLOSE_SECONDS)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        began_seconds = time.monotonic()
        try:
            engine = self._build(self._settings)
            for step in self._steps:
                step(engine)
        except BaseException as error:  # noqa: BLE001 - start of the engine
            _tell(loop, self._failed, error)
            return
        log.info("engine ready after %.2f s", time.monotonic() - began_seconds)
        if not _tell(loop, self._engine.set_result, engine):
            engine.close()

    def _failed(self, error: BaseException) -> None:
        log.critical("the engine could not start", exc_info=error)
        self._engine.set_exception(error)
        self._engine.exception()  # seen: nobody may be waiting
        self._on_failure(error)


def _tell(loop: asyncio.AbstractEventLoop, function: Callable[[Any], object], value: Any) -> bool:
    """Call on the loop from another thread; False when the server has ended meanwhile."""
    try:
        loop.call_soon_threadsafe(function, value)
    except RuntimeError:
        return False
    return True
