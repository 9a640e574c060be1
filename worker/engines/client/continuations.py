"""Continuations: prompts that the nodes of a prompt queue to go on with it, at one engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Collection, Mapping

from darkroom.worker.engines.client.lost import EngineLost
from darkroom.worker.engines.client.prompt_calls import PromptCalls
from darkroom.worker.engines.client.run import Run
from darkroom.worker.engines.continuations import FIRST_PROMPT, is_unfinished
from darkroom.worker.engines.outcome import RunOutcome
from darkroom.worker.errors import EngineUnreachable, JobCancelled

LOOK_SECONDS = 0.25
MAX_ABANDONED = 100


class Continuations:
    """Prompts that continue others, and which of those were stopped at a foreign engine.

    `reports_them`: the engine is ours, which reports the continuations of a prompt and stops them with it.
    """

    def __init__(self, prompts: PromptCalls, *, reports_them: bool) -> None:
        self._prompts = prompts
        self._reports_them = reports_them
        self._abandoned: deque[str] = deque(maxlen=MAX_ABANDONED)

    def begin(self, prompt_id: str, extra_data: Mapping[str, object]) -> Mapping[str, object]:
        """Return the extra data of a first prompt that is sent, be it once more."""
        if self._reports_them:
            return extra_data
        self._abandoned = deque((found for found in self._abandoned if found != prompt_id), MAX_ABANDONED)
        return {**extra_data, FIRST_PROMPT: prompt_id}

    async def following(self, run: Run, outcome: RunOutcome, seen: Collection[str], *, is_last: bool) -> list[str]:
        """Return the prompts that a run's nodes have queued. Raises JobCancelled if the next one was taken away.

        Of a recovered job several may be known at once: `is_last` is False while others are still to be awaited.
        """
        if self._reports_them or outcome.error is not None or not is_unfinished(outcome):
            return [prompt_id for prompt_id in outcome.continued_by if prompt_id not in seen]
        try:
            found = await self._prompts.queued_for([run.first_id or run.prompt_id], seen)
        except EngineUnreachable as error:
            raise EngineLost(error.message, was_running=True) from None
        if not found and is_last:
            raise JobCancelled("The prompt that goes on with this job is not in the engine any more")
        return found

    def abandon(self, run: Run) -> None:
        """Record that a run is stopped, and with it what continues it."""
        if not self._reports_them:
            self._abandoned.append(run.first_id or run.prompt_id)

    async def withdraw_abandoned(self, _stopped: str) -> None:
        """Withdraw what goes on with stopped prompts in a foreign engine; one of ours does so by itself."""
        if self._reports_them:
            return
        with contextlib.suppress(EngineUnreachable):
            while found := await self._prompts.queued_for(self._abandoned):
                for continuation in found:
                    await self._prompts.withdraw(continuation)
                await asyncio.sleep(LOOK_SECONDS)
