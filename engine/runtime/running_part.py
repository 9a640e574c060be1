"""Part of a prompt that may run: without the branches that switches leave out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from darkroom.contract.graph.facts import NO_FACTS, NodeFacts
from darkroom.contract.graph.switches import find_left_out, inputs_of, without_left_out
from darkroom.engine.nodes.base import NodeClass
from darkroom.engine.runtime.request import RunRequest


def running_part(request: RunRequest, find_class: Callable[[str], NodeClass | None]) -> Mapping[str, object]:
    """Return the prompt of a request without what its outputs certainly do not need because of a switch.

    Classes of nodes in there need not exist. Every other node is kept, whether an output needs it or not.
    """
    prompt = request.prompt

    def facts_of(node_id: str) -> NodeFacts:
        node = prompt[node_id]
        found = find_class(str(node.get("class_type"))) if isinstance(node, Mapping) else None
        return NO_FACTS if found is None else found.facts

    return without_left_out(prompt, find_left_out(inputs_of(prompt), facts_of, request.outputs))
