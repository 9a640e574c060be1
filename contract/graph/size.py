"""The size of a prompt, bounded before anything else is done with it: nodes, links, bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from darkroom.contract.errors import Problem, PromptRejected
from darkroom.contract.graph.prompt import is_link

SCALAR_BYTES = 8  # of a number, a boolean, a bracket


@dataclass(frozen=True, slots=True)
class GraphLimits:
    """The largest prompt that is looked at. 0: no limit."""

    max_nodes: int = 50_000
    max_links: int = 250_000
    max_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Excess:
    """Limit that a prompt exceeds. `unit` is nodes, links or bytes; `found` is the count when it was exceeded."""

    unit: str
    found: int
    allowed: int


def _counts(text: str) -> bool:
    return True


def find_excess(data: Mapping[str, Any], limits: GraphLimits, counts: Callable[[str], bool] = _counts) -> Excess | None:
    """Return the first limit that a prompt exceeds, or None. A text that does not `counts` is as small as a number."""
    if limits.max_nodes and len(data) > limits.max_nodes:
        return Excess("nodes", len(data), limits.max_nodes)
    if not (limits.max_links or limits.max_bytes):
        return None
    num_links = num_bytes = 0
    for node_id, node in data.items():
        given = node.get("inputs") if isinstance(node, Mapping) else None
        inputs: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        others = [item for item in node.values() if item is not inputs] if isinstance(node, Mapping) else [node]
        num_bytes += len(node_id) + SCALAR_BYTES + sum(_bytes_of(item, limits.max_bytes) for item in others)
        for name, value in inputs.items():
            num_bytes += len(name)
            if type(value) is str:
                num_bytes += len(value) if counts(value) else SCALAR_BYTES
            elif type(value) is list and is_link(value):
                num_links += 1
                num_bytes += len(value[0]) + SCALAR_BYTES
            else:
                num_bytes += _bytes_of(value, limits.max_bytes)
        if limits.max_links and num_links > limits.max_links:
            return Excess("links", num_links, limits.max_links)
        if limits.max_bytes and num_bytes > limits.max_bytes:
            return Excess("bytes", num_bytes, limits.max_bytes)
    return None


def check_size(data: object, limits: GraphLimits) -> None:
    """Raise `PromptRejected` for a prompt over a limit. Data that is no prompt is left to `parse_prompt`."""
    excess = find_excess(data, limits) if isinstance(data, Mapping) else None
    if excess is not None:
        message = f"The prompt has too many {excess.unit}"
        details = f"got {excess.found}, expected at most {excess.allowed}"
        extra = {"limit": f"max_{excess.unit}", "value": excess.found, "allowed": excess.allowed}
        raise PromptRejected(Problem("prompt_too_large", message, details, extra))


def _bytes_of(value: object, enough: int) -> int:
    """Estimate the size of a JSON value: its texts, and a few bytes for all else. Stops past `enough`, unless 0."""
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
            num_bytes += sum(len(str(key)) for key in item)
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return num_bytes
