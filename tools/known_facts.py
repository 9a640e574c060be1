"""Writes `contract/graph/known_facts.json`: what the built-in nodes declare, for programs that have no engine to ask.

python -m tools.known_facts

A node or sampler that the file lacks is known as soon as an engine reports it, so adding one needs no new file.
"""

from __future__ import annotations

import json
from dataclasses import replace

from darkroom.contract.graph.facts import KNOWN_PATH
from darkroom.engine.nodes.built_in import built_in_nodes
from darkroom.engine.nodes.function_node import FunctionNode
from darkroom.engine.nodes.library.sampling.sampling import facts_of_samplers

LISTS_SAMPLERS = "KSamplerSelect"
"""The one class whose entry has the samplers."""


def described_facts() -> dict[str, dict[str, object]]:
    """Return the facts of the built-in nodes that declare any, by class."""
    nodes = {item.class_type: item.facts for item in built_in_nodes() if isinstance(item, FunctionNode)}
    nodes[LISTS_SAMPLERS] = replace(nodes[LISTS_SAMPLERS], samplers=facts_of_samplers())
    found = {name: facts.as_json() for name, facts in nodes.items()}
    return {name: facts for name, facts in sorted(found.items()) if facts}


def main() -> None:
    lines = (f"{json.dumps(name)}: {json.dumps(facts)}" for name, facts in described_facts().items())
    KNOWN_PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
