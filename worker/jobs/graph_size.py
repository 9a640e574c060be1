"""Limits on the size of a workflow, checked before all else: nodes, links, bytes. Pure.

Base64 files in a node's input do not count; `MAX_REQUEST_BYTES` and `INPUT_MAX_BYTES` limit those.
"""

from __future__ import annotations

from typing import Final

from engine.graph.size import GraphLimits, find_excess
from worker.errors import Problem
from worker.inputs.references import INLINE, source_of
from worker.json_values import JsonObject
from worker.settings.jobs import PromptLimits

LONG_LENGTH: Final = 4096  # only longer texts are checked for being a file


def find_size_problem(graph: JsonObject, limits: PromptLimits) -> Problem | None:
    """Return the problem of the first limit that a workflow exceeds, or None."""
    allowed = GraphLimits(limits.max_nodes, limits.max_links, limits.max_bytes)
    excess = find_excess(graph, allowed, lambda text: len(text) <= LONG_LENGTH or source_of(text) not in INLINE)
    if excess is None:
        return None
    return Problem(
        f"has too many {excess.unit}; got {excess.found}, expected at most {excess.allowed}",
        field="input.workflow_json",
        type=f"max_{excess.unit}",
        allowed={"maximum": excess.allowed},
        extra={"received": excess.found},
    )
