"""The prompt as data: ComfyUI's API format read into nodes and links.

    {"3": {"class_type": "KSampler", "inputs": {"seed": 7, "model": ["1", 0]}}}

An input is a link when it is a list of a node id and an output's index; everything else is a value. The inputs stay as
they came: whether they fit their node is `validate.py`'s question.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

from engine.errors import Problem, PromptRejected


class Link(NamedTuple):
    """An input fed by another node's output."""

    input_name: str
    source: str
    slot: int


class Node:
    """One node of a prompt, as it came. `raw` is its JSON object, `inputs` the object's own inputs."""

    __slots__ = ("class_type", "id", "inputs", "links", "raw")

    def __init__(self, node_id: str, raw: Mapping[str, Any]) -> None:
        self.id = node_id
        self.raw = raw
        self.class_type: str = raw["class_type"]
        inputs = raw.get("inputs")
        self.inputs: Mapping[str, Any] = inputs if isinstance(inputs, Mapping) else {}
        self.links: list[Link] = [
            Link(name, value[0], value[1])
            for name, value in self.inputs.items()
            if type(value) is list and is_link(value)
        ]


Prompt = dict[str, Node]


def is_link(value: object) -> TypeGuard[list[Any]]:
    """Whether an input's value names another node's output."""
    return (
        isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], (int, float))
    )


def parse_prompt(data: Any) -> Prompt:
    """The nodes of a prompt by id, in its order.

    Raises `PromptRejected` (ComfyUI's `invalid_prompt`) when it is no object or a node names no class.
    """
    if not isinstance(data, Mapping):
        raise PromptRejected(_invalid("Cannot execute because the prompt is not an object of nodes.", ""))
    nodes: Prompt = {}
    for node_id, raw in data.items():
        if not isinstance(raw, Mapping) or not isinstance(raw.get("class_type"), str):
            message = "Cannot execute because a node is missing the class_type property."
            raise PromptRejected(_invalid(message, f"Node ID '#{node_id}'"))
        nodes[node_id] = Node(node_id, raw)
    return nodes


def unknown_class(node: Node) -> Problem:
    return _invalid(f"Cannot execute because node {node.class_type} does not exist.", f"Node ID '#{node.id}'")


def undeclared_class(node: Node, error: BaseException) -> Problem:
    """The class is there, but its own declaration raised."""
    reason = f"{type(error).__name__}: {error}"
    message = f"Cannot execute because node {node.class_type} cannot describe itself: {reason}"
    return _invalid(message, f"Node ID '#{node.id}'")


def _invalid(message: str, details: str) -> Problem:
    return Problem("invalid_prompt", message, details, {})
