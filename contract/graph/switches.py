"""Branches of a prompt that switches leave out, where that is certain before the prompt runs. Pure.

A switch is a node whose class declares `chosen_by` and `alternatives` (`facts.py`). Where the value that chooses is a
literal, its own or that of a node which `gives` one, the executor never asks for the other alternatives: the nodes
that only they need do not run. ComfyUI checks such nodes all the same; here they are no reason to refuse a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from darkroom.contract.graph.facts import NO_FACTS, NodeFacts
from darkroom.contract.graph.prompt import Prompt, is_link, reached
from darkroom.contract.graph.spec import NodeRules, Values

MAX_DEPTH: Final = 50
"""Nodes that a value is followed through; the value of a longer chain counts as unknown."""

_UNKNOWN: Final = object()

Inputs = Mapping[str, Values]
"""Inputs of the nodes of a prompt, by node id."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Links that no switch follows, as node id and input, and the nodes that nothing but these links needs.

    `chosen` has the input that each switch follows, by node id, of those whose choice is certain.
    """

    links: frozenset[tuple[str, str]] = frozenset()
    nodes: frozenset[str] = frozenset()
    chosen: Mapping[str, str] = field(default_factory=dict)


NOTHING_LEFT_OUT: Final = LeftOut()


def find_left_out(inputs: Inputs, facts_of: Callable[[str], NodeFacts], outputs: Collection[str]) -> LeftOut:
    """Return the links and nodes that switches leave out. `facts_of` returns the facts of a node's class, by node id.

    `outputs` are the output nodes. A node that something else takes is not left out, even where that does not run.
    """
    chosen = _Switches(inputs, facts_of).chosen()
    if not chosen:
        return NOTHING_LEFT_OUT
    others = ((node_id, name) for node_id in chosen for name in facts_of(node_id).alternatives.values())
    links = frozenset(
        (node_id, name) for node_id, name in others if name != chosen[node_id] and is_link(inputs[node_id].get(name))
    )
    followed: dict[str, list[str]] = {}
    taken: set[str] = set()
    dropped: list[str] = []
    for node_id, values in inputs.items():
        sources = followed[node_id] = []
        for name, value in values.items():
            if is_link(value) and value[0] in inputs:
                taken.add(value[0])
                (dropped if (node_id, name) in links else sources).append(value[0])
    ends = [node_id for node_id in inputs if node_id in outputs or node_id not in taken]
    return LeftOut(links, reached(dropped, followed.__getitem__) - reached(ends, followed.__getitem__), chosen)


def left_out_of(prompt: Prompt, rules: Mapping[str, NodeRules]) -> LeftOut:
    """Return the links and nodes that switches leave out. `rules` are those of classes that exist, by class."""
    if not any(item.facts.chosen_by for item in rules.values()):
        return NOTHING_LEFT_OUT
    facts = {name: item.facts for name, item in rules.items()}
    outputs = {node.id for node in prompt.values() if (own := rules.get(node.class_type)) is not None and own.is_output}
    inputs = {node_id: node.inputs for node_id, node in prompt.items()}
    return find_left_out(inputs, lambda node_id: facts.get(prompt[node_id].class_type, NO_FACTS), outputs)


def inputs_of(prompt: Values) -> dict[str, Values]:
    """Return the inputs of the nodes of a prompt in API format; none for what is no node."""
    return {node_id: _mapping(_mapping(node).get("inputs")) for node_id, node in prompt.items()}


def without_left_out(prompt: Values, left_out: LeftOut) -> Values:
    """Return a prompt in API format without what is left out; the prompt itself where nothing is."""
    if not left_out.links:
        return prompt
    changed = {node_id for node_id, _ in left_out.links}
    kept = {node_id: node for node_id, node in prompt.items() if node_id not in left_out.nodes}
    for node_id in changed & kept.keys():
        inputs = kept[node_id]["inputs"]
        used = {name: value for name, value in inputs.items() if (node_id, name) not in left_out.links}
        kept[node_id] = {**kept[node_id], "inputs": used}
    return kept


class _Switches:
    """The switches of one prompt, and the values that are certain before it runs. Each node is looked at once."""

    def __init__(self, inputs: Inputs, facts_of: Callable[[str], NodeFacts]) -> None:
        self._inputs = inputs
        self._facts_of = facts_of
        self._known: dict[str, object] = {}

    def chosen(self) -> dict[str, str]:
        """Return the alternative that each switch follows whose choice is certain, by node id."""
        found = {}
        for node_id, inputs in self._inputs.items():
            facts = self._facts_of(node_id)
            name = self._chosen(inputs, facts, 0) if facts.chosen_by else None
            if name is not None:
                found[node_id] = name
        return found

    def _chosen(self, inputs: Values, facts: NodeFacts, depth: int) -> str | None:
        """Return the alternative of a switch; None where the choice is unknown, or that alternative is not given."""
        value = self._value(inputs.get(facts.chosen_by, _UNKNOWN), depth)
        name = None if value is _UNKNOWN else facts.alternatives.get("true" if value else "false")
        return name if name in inputs else None

    def _value(self, given: object, depth: int) -> object:
        if is_link(given):
            return self._output(given[0], depth + 1) if given[1] == 0 else _UNKNOWN
        return given if given is None or isinstance(given, bool | int | float | str) else _UNKNOWN

    def _output(self, node_id: str, depth: int) -> object:
        """Return the value of a node's first output, `_UNKNOWN` where only a run tells it."""
        if node_id in self._known:
            return self._known[node_id]
        self._known[node_id] = _UNKNOWN  # also for a loop of links
        inputs = self._inputs.get(node_id)
        if inputs is not None and depth <= MAX_DEPTH:
            facts = self._facts_of(node_id)
            name = self._chosen(inputs, facts, depth) if facts.chosen_by else facts.gives
            if name:
                self._known[node_id] = self._value(inputs.get(name, _UNKNOWN), depth)
        return self._known[node_id]


def _mapping(value: object) -> Values:
    return value if isinstance(value, Mapping) else {}
