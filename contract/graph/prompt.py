"""The prompt as data: ComfyUI's API format read into nodes and links.

    {"3": {"class_type": "KSampler", "inputs": {"seed": 7, "model": ["1", 0]}}}

An input is a link when it is a list of a node id and an output's index; everything else is a value. The inputs stay as
they came: whether they fit their node is `validate.py`'s question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeGuard

from darkroom.contract.errors import Explanation, Problem, PromptRejected
from darkroom.contract.graph.spec import Values


class Link(NamedTuple):
    """An input fed by another node's output."""

    input_name: str
    source: str
    slot: int


class Node:
    """One node of a prompt, as it came. `raw` is its JSON object, `inputs` the object's own inputs."""

    __slots__ = ("class_type", "id", "inputs", "links", "raw")

    def __init__(self, node_id: str, raw: Values) -> None:
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
    """Return True where an input's value is a link to another node's output."""
    return (
        isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], (int, float))
    )


def parse_prompt(data: object) -> Prompt:
    """Parse the nodes of a prompt by id, in its order.

    Raises `PromptRejected` (ComfyUI's `invalid_prompt`) when it is no object or a node names no class.
    """
    if not isinstance(data, Mapping):
        raise PromptRejected(_invalid("Cannot execute because the prompt is not an object of nodes.", ""))
    nodes: Prompt = {}
    for node_id, raw in data.items():
        if not isinstance(raw, Mapping) or not isinstance(raw.get("class_type"), str):
            message = "Cannot execute because a node is missing the class_type property."
            explanation = Explanation("A node is an object with class_type and inputs", node_id=node_id)
            raise PromptRejected(_invalid(message, f"Node ID '#{node_id}'", explanation))
        nodes[node_id] = Node(node_id, raw)
    return nodes


def reached(roots: Iterable[str], following: Callable[[str], Iterable[str]]) -> frozenset[str]:
    """Return the nodes that some lead to, these among them; `following` returns those that one leads to itself."""
    found = set(roots)
    left = list(found)
    while left:
        for node_id in following(left.pop()):
            if node_id not in found:
                found.add(node_id)
                left.append(node_id)
    return frozenset(found)


def unknown_class(node: Node) -> Problem:
    message = f"Unknown node class {node.class_type!r}"
    explanation = Explanation(message, "unknown_class", node_id=node.id, class_type=node.class_type)
    details = f"Node ID '#{node.id}'"
    return _invalid(f"Cannot execute because node {node.class_type} does not exist.", details, explanation)


def undeclared_class(node: Node, error: BaseException) -> Problem:
    """Return the problem of a class whose own declaration raised."""
    reason = f"{type(error).__name__}: {error}"
    message = f"Cannot execute because node {node.class_type} cannot describe itself: {reason}"
    words = f"Node class {node.class_type!r} cannot describe itself: {reason}"
    explanation = Explanation(words, "undeclared_class", node_id=node.id, class_type=node.class_type)
    return _invalid(message, f"Node ID '#{node.id}'", explanation)


def _invalid(message: str, details: str, explanation: Explanation | None = None) -> Problem:
    return Problem("invalid_prompt", message, details, {}, explanation)
