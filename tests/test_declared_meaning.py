"""The front knows nodes and samplers by what they declare: it names none of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from darkroom.engine.diffusion.samplers.registry import declared_samplers
from darkroom.engine.nodes.built_in import built_in_nodes

ROOT = Path(__file__).parents[1]
FRONT = ROOT / "worker"
DIALECTS = FRONT / "integrations"


def literals(source: str) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def test_no_module_of_the_front_names_a_node_class_or_a_sampler() -> None:
    banned = {item.class_type for item in built_in_nodes()} | declared_samplers().keys()
    found = [
        f"{path.relative_to(ROOT)}:{line} names {text}"
        for path in sorted(FRONT.rglob("*.py"))
        if not path.is_relative_to(DIALECTS)
        for line, text in literals(path.read_text("utf-8"))
        if text in banned
    ]
    assert not found, "read what it declares (contract/graph/facts.py) in the place of a name:\n" + "\n".join(found)
