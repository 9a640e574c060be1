"""PromptCheck: the check of a prompt by one engine, without GPU time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

from darkroom.worker.concurrency.off_loop import needs_thread, off_loop
from darkroom.worker.engines.choices import with_hints
from darkroom.worker.engines.client.calls import EngineCalls
from darkroom.worker.engines.client.facts import EngineFacts
from darkroom.worker.engines.client.presence import EnginePresence
from darkroom.worker.engines.client.prompt_calls import PromptCalls
from darkroom.worker.engines.graph_check import FoundProblems, find_problems
from darkroom.worker.engines.long_names import find_long_names
from darkroom.worker.engines.model_folders import Kinds, is_missing_model, with_folders
from darkroom.worker.engines.save_names import find_name_problems
from darkroom.worker.errors import EngineUnreachable, RequestRejected
from darkroom.worker.json.values import JsonObject


class PromptCheck:
    """Check of prompts by one engine, or by what was last known of it. `has_route`: it has our check route."""

    def __init__(
        self,
        calls: EngineCalls,
        prompts: PromptCalls,
        presence: EnginePresence,
        facts: EngineFacts,
        *,
        has_route: bool,
        output_folder: Path | None,
    ) -> None:
        self._calls = calls
        self._prompts = prompts
        self._presence = presence
        self._facts = facts
        self._has_route = has_route
        self._output_folder = output_folder

    async def check(self, prompt: JsonObject, pending_files: Collection[str] = ()) -> None:
        """Check a prompt. Raises RequestRejected with every problem.

        While the engine is away, what was last known of it decides.
        """
        is_large = needs_thread(prompt)
        too_long = await off_loop(is_large, find_long_names, prompt)
        if too_long:
            raise RequestRejected(too_long)
        found, kinds = await self._found(prompt, pending_files, is_large)
        names = await off_loop(
            is_large, find_name_problems, prompt, await self._facts.known_object_info(), self._output_folder
        )
        if found.listed or names:
            known = await self._facts.known_object_info()
            hinted = await asyncio.to_thread(with_hints, [*found.listed, *names], known)
            if not self._presence.is_away and any(is_missing_model(problem, kinds) for problem in hinted):
                hinted = with_folders(hinted, kinds, await self._calls.model_folders())
            raise RequestRejected(self._prompts.without_folders(hinted), num_unlisted=found.num_unlisted)

    async def _found(
        self, prompt: JsonObject, pending_files: Collection[str], is_large: bool
    ) -> tuple[FoundProblems, Kinds]:
        """Return the problems of a prompt, and the kinds of its models where our engine reports them."""
        presence, facts = self._presence, self._facts
        if self._has_route and not presence.is_away:
            try:
                return await presence.answered(self._prompts.find_problems(prompt, pending_files))
            except EngineUnreachable:
                if not presence.is_away:
                    raise
        if self._has_route or presence.is_away:
            return await off_loop(is_large, find_problems, prompt, await facts.known_object_info(), pending_files), {}
        found = await off_loop(is_large, find_problems, prompt, await facts.object_info(), pending_files)
        if found.listed:  # the cached object_info may be old: a model or a node pack may be new
            facts.forget_object_info()
            found = await off_loop(is_large, find_problems, prompt, await facts.object_info(), pending_files)
        return found, {}
