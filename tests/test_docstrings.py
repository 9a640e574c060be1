"""Docstrings begin with a plain sentence or a noun phrase; ruff's pydocstyle rules hold the rest of their form."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.statements import statements_of

pytestmark = pytest.mark.usefixtures("without_collector")

ROOT = Path(__file__).parents[1]
PACKAGES = ("worker", "engine", "modifiers", "host", "contract", "tools", "benchmark", "darkroom", "tests")
FORBIDDEN_BEGINNINGS = frozenset(
    {"What", "Which", "Whether", "Of", "How", "So", "Where", "Who", "Whose", "When", "Why", "As", "That"}
)
QUESTIONS = ("Return what", "Return which", "Return where", "Return whether", "Yield what")


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the strings that stand as statements: of modules, classes, functions, below constants and fields."""
    for item in statements_of(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str):
            yield item.lineno, item.value.value


def test_no_summary_begins_with_a_relative_or_a_question_word() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in docstrings(path)
        if text.startswith(QUESTIONS) or (text.split()[:1] and text.split()[0].rstrip(",.:;") in FORBIDDEN_BEGINNINGS)
    ]
    assert not wrong, "\n".join(wrong)
