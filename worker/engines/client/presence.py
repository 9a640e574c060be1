"""EnginePresence: whether one engine answers at present, by the word of whoever watches it or by its own silence."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from darkroom.worker.engines.address import EngineAddress
from darkroom.worker.engines.answers import reading
from darkroom.worker.engines.client.calls import SMALL_ANSWER_BYTES, EngineCalls
from darkroom.worker.engines.heartbeat import Heartbeat
from darkroom.worker.engines.http import EngineHttp
from darkroom.worker.errors import EngineUnreachable

HEARTBEAT_SECONDS = 10.0
PATIENCE_SECONDS = 2.0  # for a reply, and then for a heartbeat, before an engine of ours counts as away

Answer = TypeVar("Answer")


class EnginePresence:
    """Connection for an engine's heartbeats, and what they and others say about it.

    `is_supervised`: a supervisor reports the end of its process, so that silence alone means nothing. `has_route`: the
    engine has our route for heartbeats; another one shows by any answer that it lives.
    """

    def __init__(
        self,
        address: EngineAddress,
        calls: EngineCalls,
        *,
        is_supervised: bool,
        heartbeat_seconds: float,
        has_route: bool = True,
    ) -> None:
        self.is_supervised = is_supervised
        self._has_route = has_route
        self._calls = calls
        self._pulse = EngineHttp(address, timeout_seconds=heartbeat_seconds)
        self._is_away = False  # does not answer at present
        self._is_silent = False  # ours: the last question had no reply, and no heartbeat was answered since

    async def close(self) -> None:
        """Close the connection for heartbeats."""
        await self._pulse.close()

    @property
    def is_away(self) -> bool:
        """True while the engine does not answer."""
        return self._is_away or self._is_silent

    def mark_away(self, is_away: bool) -> None:
        """Note whether the engine answers at present."""
        if self._is_away and not is_away:
            self._is_silent = False
        self._is_away = is_away

    async def heartbeat(self) -> Heartbeat:
        """Return the heartbeat of an engine. Raises EngineUnreachable, also when the reply takes long.

        That of an engine without our route says nothing about its prompts.
        """
        route = "/api/v1/heartbeat" if self._has_route else "/system_stats"
        with self._calls.judging("heartbeat"):
            reply = await self._pulse.request("GET", route, max_bytes=SMALL_ANSWER_BYTES)
            if reply.status != 200:
                raise EngineUnreachable(f"The engine answered {reply.status} to its heartbeat")
            if not self._has_route:
                self._is_silent = False
                return Heartbeat()
            answer = await reply.json_object()
            with reading(reply.route):
                heartbeat = Heartbeat.of(answer)
        self._is_silent = False
        return heartbeat

    async def answered(self, question: Coroutine[Any, Any, Answer]) -> Answer:
        """Await a reply while the engine, if it is ours, answers heartbeats; else it is away from then on.

        Raises EngineUnreachable. A node that holds the interpreter makes the server answer nothing for as long.
        """
        if not self.is_supervised:
            return await question
        asking = asyncio.ensure_future(question)
        try:
            while not (await asyncio.wait({asking}, timeout=PATIENCE_SECONDS))[0]:
                try:
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        await self.heartbeat()
                except TimeoutError:
                    raise EngineUnreachable("The engine answers nothing at present") from None
            return asking.result()
        except EngineUnreachable:
            self._is_silent = True
            raise
        finally:
            asking.cancel()
