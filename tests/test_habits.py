"""Habits that a number holds: how often tests use what an object keeps to itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("darkroom/client", "worker", "engine", "contract", "host", "modifiers", "benchmark", "demo", "tools")
MOST_PRIVATE_USES = 120
"""Only ever lowered: a test that needs more gets a public observation from the owner."""

DEFINITION = re.compile(r"(?:\bdef |\bclass |\bself\.|^)(_\w+)(?=\(|:|\s*[:=]\s)", re.MULTILINE)

pytestmark = pytest.mark.usefixtures("without_collector")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(text: str) -> Iterator[str]:
    """Yield the private names that a source file defines: functions, classes, variables and attributes of `self`."""
    return (name for name in DEFINITION.findall(text) if is_private(name))


def private_uses(tree: ast.Module, ours: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield line and name of each use of a private name of ours by way of another object or module."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name, lineno=line) if name in ours:
                yield line, name
            case ast.ImportFrom(names=names, lineno=line):
                yield from ((line, item.name) for item in names if item.name in ours)
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr"), args=args, lineno=line):
                texts = [item.value for item in args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
                yield from ((line, text) for text in texts if text.rpartition(".")[2] in ours)
            case _:
                pass


def test_tests_use_private_names_ever_less() -> None:
    assert all((ROOT / folder).is_dir() for folder in OURS)
    files = (path for folder in OURS for path in (ROOT / folder).rglob("*.py"))
    ours = frozenset(name for path in files for name in private_names(path.read_text("utf-8")))
    uses = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line, name in private_uses(ast.parse(path.read_text("utf-8")), ours)
    ]
    assert len(uses) <= MOST_PRIVATE_USES, "\n".join(uses)
