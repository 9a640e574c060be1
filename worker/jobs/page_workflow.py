"""Conversion of a request's workflow from the page's format, within the operator's limits."""

from __future__ import annotations

import secrets
from typing import Final

from worker.engines.choices import with_hints
from worker.errors import RequestRejected
from worker.jobs.prompt_rules import PromptRules
from worker.json_values import JsonObject
from worker.off_loop import off_loop
from worker.workflows.page_graph import count_nodes, is_page_format
from worker.workflows.to_prompt import to_prompt

LARGE_PAGE_NODES: Final = 100  # reading a node's declaration takes longer than a look at the node
MAX_UNFOLDED_NODES: Final = 100_000  # without a limit by the operator: sub-graphs multiply


async def as_prompt(workflow: JsonObject, object_info: JsonObject, rules: PromptRules) -> JsonObject:
    """Return a workflow in API format, converted if it is as ComfyUI's page saves it. Raises RequestRejected."""
    if not is_page_format(workflow):
        return workflow
    is_large = count_nodes(workflow) >= LARGE_PAGE_NODES
    max_nodes = rules.max_nodes or MAX_UNFOLDED_NODES
    try:
        prompt = await off_loop(is_large, to_prompt, workflow, object_info, secrets.randbelow, max_nodes)
    except RequestRejected as rejected:
        hinted = with_hints(rejected.problems, object_info)
        raise RequestRejected(hinted, num_unlisted=rejected.num_unlisted) from None
    await rules.check_size(prompt)
    return prompt
