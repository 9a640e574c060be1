"""Measures of the source that `docs/architecture.md` shows."""

from __future__ import annotations

import ast

import pytest

from tools.measures import Spread, is_open, measures_of, sources_here

pytestmark = pytest.mark.usefixtures("without_collector")

MOST_OPEN = {"engine": 0.08, "worker": 0.08}

SOURCE = """
from typing import Any

Options = dict[str, Any]


def plain(number: int, options: Options) -> str:
    return str(number)


class Thing:
    async def opened(self, *items: list[Any]) -> None:
        pass
"""


def test_files_functions_and_open_signatures_are_counted() -> None:
    found = measures_of([SOURCE, "", "x = 1\n"])
    assert (found.num_files, found.num_functions) == (2, 2)
    assert found.files == Spread(median=1, p90=13)
    assert found.functions == Spread(median=2, p90=2)
    assert (found.open_share, found.named_share) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        ("f(a: int) -> str", False),
        ("f(a: Any) -> str", True),
        ("f(a: int) -> dict[str, Any]", True),
        ("f(a: int, *, b: 'int', **c: Any) -> None", True),
        ("f(a: int = Any) -> None", False),
    ],
)
def test_a_signature_is_open_by_its_annotations(signature: str, expected: bool) -> None:
    (function,) = ast.parse(f"def {signature}: ...").body
    assert isinstance(function, ast.FunctionDef)
    assert is_open(function) is expected


@pytest.mark.parametrize("package", MOST_OPEN)
def test_few_signatures_are_open(package: str) -> None:
    assert measures_of(sources_here(package)).open_share < MOST_OPEN[package]
