"""Choice of the fallback for workflows with a network that our engine has no family for."""

from __future__ import annotations

from darkroom.contract.graph.prompt_graph import PromptGraph
from darkroom.worker.concurrency.off_loop import needs_thread, off_loop
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.fallback.choice import EngineChoice, choice_for_files
from darkroom.worker.errors import EngineUnreachable
from darkroom.worker.json.values import JsonObject


async def choice_of_families(engine: EngineClient, prompt: JsonObject) -> EngineChoice | None:
    """Return the choice of the fallback for a prompt with a network of no family of our engine; None for others.

    Files that are not there yet, or while the engine is away, count as of a family.
    """
    try:
        info = await engine.known_object_info()
        files = await off_loop(needs_thread(prompt), lambda: PromptGraph(prompt, info).model_files)
        await engine.facts.known_families_of(files)
    except EngineUnreachable:  # its run shows
        return None
    names = [] if engine.is_away else [file.name for file in engine.facts.families.refused(files)]
    return choice_for_files(names) if names else None
