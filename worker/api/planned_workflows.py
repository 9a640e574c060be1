"""Workflows of bodies that are planned: one that is sent, or the prompt that a modifier makes here."""

from __future__ import annotations

from darkroom.worker.api.job_making import build_prompt, defaults_of
from darkroom.worker.api.schemas import GenerateInput
from darkroom.worker.api.services import Services
from darkroom.worker.api.workflow_bodies import checked_workflow
from darkroom.worker.concurrency.off_loop import needs_thread, off_loop
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.prompts.random_values import resolve


async def workflow_to_plan(services: Services, engine: EngineClient, body: JsonObject, size_bytes: int) -> JsonObject:
    """Return the workflow of a body, or the prompt of its `modifier` and `modifications`.

    Raises RequestRejected, EngineUnreachable.
    """
    given = object_at(body, "input")
    name = given.get("modifier")
    if not isinstance(name, str) or not name:
        return await checked_workflow(services.requests, body, size_bytes)
    asked = GenerateInput(modifier=name, modifications=dict(object_at(given, "modifications")))
    defaults = await defaults_of(services.requests, asked, engine, await engine.known_object_info())
    prompt: JsonObject = build_prompt(services.requests, asked, defaults)
    return await off_loop(needs_thread(prompt), resolve, prompt, lambda: 0)
