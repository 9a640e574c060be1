"""Limits on the size of a workflow, checked before all else: nodes, links, bytes. Pure.

Base64 files in a node's input do not count; `MAX_REQUEST_BYTES` and `INPUT_MAX_BYTES` limit those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from worker.errors import Problem
from worker.inputs.references import INLINE, source_of
from worker.setting_slices import PromptLimits

SCALAR_BYTES: Final = 8  # counted for a number, a boolean or a bracket
LONG_LENGTH: Final = 4096  # only longer texts are checked for being a file


def find_size_problem(graph: Mapping[str, Any], limits: PromptLimits) -> Problem | None:
    """Return the problem of the first limit that a workflow exceeds, or None."""
    if limits.max_nodes and len(graph) > limits.max_nodes:
        return _too_large("nodes", len(graph), limits.max_nodes)
    num_links = num_bytes = 0
    for node_id, node in graph.items():
        given = node.get("inputs") if isinstance(node, Mapping) else None
        inputs: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        others = [item for item in node.values() if item is not inputs] if isinstance(node, Mapping) else [node]
        num_bytes += len(node_id) + SCALAR_BYTES + sum(_bytes_of(item, limits.max_bytes) for item in others)
        for name, value in inputs.items():
            num_bytes += len(name)
            if isinstance(value, str):
                is_file = len(value) > LONG_LENGTH and source_of(value) in INLINE
                num_bytes += SCALAR_BYTES if is_file else len(value)
            else:
                num_links += _is_link(value)
                num_bytes += _bytes_of(value, limits.max_bytes)
        if limits.max_links and num_links > limits.max_links:
            return _too_large("links", num_links, limits.max_links)
        if limits.max_bytes and num_bytes > limits.max_bytes:
            return _too_large("bytes", num_bytes, limits.max_bytes)
    return None


def _is_link(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], int)


def _bytes_of(value: Any, enough: int) -> int:
    """Return the size of a JSON value: its texts, and a few bytes for everything else.

    Counting stops above `enough`, unless that is 0.
    """
    if not isinstance(value, dict | list):
        return len(value) if isinstance(value, str) else SCALAR_BYTES
    num_bytes = 0
    waiting: list[Any] = [value]
    while waiting and (not enough or num_bytes <= enough):
        item = waiting.pop()
        if isinstance(item, str):
            num_bytes += len(item)
            continue
        num_bytes += SCALAR_BYTES
        if isinstance(item, dict):
            num_bytes += sum(map(len, item))
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return num_bytes


def _too_large(unit: str, found: int, allowed: int) -> Problem:
    return Problem(
        f"has too many {unit}; got {found}, expected at most {allowed}",
        field="input.workflow_json",
        type=f"max_{unit}",
        allowed={"maximum": allowed},
        extra={"received": found},
    )
