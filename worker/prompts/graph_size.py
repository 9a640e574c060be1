"""Limits on the size of a workflow, checked before all else: nodes, links, bytes. Pure.

Base64 files in a node's input do not count; `MAX_REQUEST_BYTES` and `INPUT_MAX_BYTES` limit those.
"""

from __future__ import annotations

from typing import Final

from darkroom.contract.graph.size import Excess, GraphLimits, find_excess
from darkroom.worker.errors import Problem
from darkroom.worker.inputs.references import INLINE, source_of
from darkroom.worker.json.values import JsonObject
from darkroom.worker.prompts.workflows.page_graph import count_links, count_nodes, is_page_format
from darkroom.worker.settings.jobs import PromptLimits

LONG_LENGTH: Final = 4096  # only longer texts are checked for being a file


def find_size_problem(graph: JsonObject, limits: PromptLimits) -> Problem | None:
    """Return the problem of the first limit that a workflow exceeds, or None."""
    if is_page_format(graph):
        return _page_problem(graph, limits)
    allowed = GraphLimits(limits.max_nodes, limits.max_links, limits.max_bytes)
    return _problem_of(find_excess(graph, allowed, _counts))


def _counts(text: str) -> bool:
    return len(text) <= LONG_LENGTH or source_of(text) not in INLINE


def _page_problem(page: JsonObject, limits: PromptLimits) -> Problem | None:
    """Return the problem of a workflow as ComfyUI's page saves it, its sub-graphs not unfolded."""
    for unit, found, allowed in (
        ("nodes", count_nodes(page), limits.max_nodes),
        ("links", count_links(page), limits.max_links),
    ):
        if allowed and found > allowed:
            return _problem_of(Excess(unit, found, allowed))
    return _problem_of(find_excess(page, GraphLimits(0, 0, limits.max_bytes)))


def _problem_of(excess: Excess | None) -> Problem | None:
    if excess is None:
        return None
    return Problem(
        f"has too many {excess.unit}; got {excess.found}, expected at most {excess.allowed}",
        field="input.workflow_json",
        type=f"max_{excess.unit}",
        allowed={"maximum": excess.allowed},
        extra={"received": excess.found},
    )
