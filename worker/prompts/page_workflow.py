"""Conversion of a request's workflow from the page's format, and its overrides, within the operator's limits.

A page is always read in a thread: what it costs shows neither in its nodes nor in its bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from darkroom.worker.concurrency.off_loop import needs_thread, off_loop
from darkroom.worker.engines.choices import with_hints
from darkroom.worker.errors import RequestRejected
from darkroom.worker.json.values import JsonObject
from darkroom.worker.prompts.rules import PromptRules
from darkroom.worker.prompts.workflows.app_mode import AppMode, read_app_mode
from darkroom.worker.prompts.workflows.overrides import Overridden, override
from darkroom.worker.prompts.workflows.page_graph import is_page_format
from darkroom.worker.prompts.workflows.to_prompt import to_prompt
from darkroom.worker.storage.stored_workflow import Place


async def as_prompt(workflow: JsonObject, object_info: JsonObject, rules: PromptRules) -> JsonObject:
    """Return a workflow in API format, converted if it is as ComfyUI's page saves it. Raises RequestRejected."""
    if not is_page_format(workflow):
        return workflow
    max_nodes = rules.max_nodes
    try:
        prompt = await off_loop(True, to_prompt, workflow, object_info, secrets.randbelow, max_nodes)
    except RequestRejected as rejected:
        hinted = with_hints(rejected.problems, object_info)
        raise RequestRejected(hinted, num_unlisted=rejected.num_unlisted) from None
    await rules.check_size(prompt)
    return prompt


async def with_overrides(
    workflow: JsonObject,
    overrides: Mapping[str, Any],
    object_info: JsonObject,
    rules: PromptRules,
    named_inputs: Mapping[str, tuple[Place, ...]] | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> Overridden:
    """Return a workflow in API format with the overrides and named inputs of its request. Raises RequestRejected.

    `named_inputs` replace those of the page's app mode.
    """
    prompt = await as_prompt(workflow, object_info, rules)
    if not overrides and not inputs:
        return Overridden(prompt)
    if named_inputs is None:
        named_inputs = (await app_mode_of(workflow, object_info, rules)).inputs
    is_large = needs_thread(prompt, overrides, inputs or {}, named_inputs)
    overridden = await off_loop(is_large, override, prompt, overrides, object_info, named_inputs, inputs)
    await rules.check_size(overridden.prompt)
    return overridden


async def app_mode_of(workflow: JsonObject, object_info: JsonObject, rules: PromptRules) -> AppMode:
    """Return the named inputs and outputs of a page; none for a prompt. Raises RequestRejected."""
    is_page = is_page_format(workflow)
    return await off_loop(is_page, read_app_mode, workflow, object_info, rules.max_nodes)
