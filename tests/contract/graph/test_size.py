"""Prompts over a limit are refused before anything else looks at them."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.contract.errors import PromptRejected
from darkroom.contract.graph.size import GraphLimits, check_size
from tests.contract.graph.declared import node


def refusal_of(prompt: Any, **limits: int) -> dict[str, Any]:
    with pytest.raises(PromptRejected) as refused:
        check_size(prompt, GraphLimits(**limits))
    return dict(refused.value.problem.extra_info)


def test_nodes_are_counted_before_anything_is_looked_at() -> None:
    prompt = dict.fromkeys(map(str, range(5)))
    assert refusal_of(prompt, max_nodes=4) == {"limit": "max_nodes", "value": 5, "allowed": 4}
    check_size(prompt, GraphLimits(max_nodes=5))


def test_links_are_counted() -> None:
    prompt = {"1": node("A", a=["2", 0], b=["2", 1], c=[1, 2]), "2": node("B")}
    assert refusal_of(prompt, max_links=1) == {"limit": "max_links", "value": 2, "allowed": 1}
    check_size(prompt, GraphLimits(max_links=2))


@pytest.mark.parametrize(
    "value", ["x" * 1000, ["x" * 1000], {"a": {"b": "x" * 1000}}, [0] * 200, {"x" * 1000: 1}, [[[[]]] * 100]]
)
def test_bytes_are_those_of_texts_and_of_structure(value: Any) -> None:
    prompt = {"1": node("A", a=value)}
    assert refusal_of(prompt, max_bytes=800)["limit"] == "max_bytes"
    assert refusal_of({"1": {**node("A"), "_meta": value}}, max_bytes=800)["limit"] == "max_bytes"
    check_size(prompt, GraphLimits(max_bytes=4000))


def test_zero_is_no_limit() -> None:
    prompt = {str(index): node("A", a=["0", 0], b="x" * 100) for index in range(100)}
    check_size(prompt, GraphLimits(0, 0, 0))


@pytest.mark.parametrize("data", [None, [], "x", 3, {}, {"1": None}, {"1": {"inputs": []}}, {"1": [1, 2]}])
def test_what_is_no_prompt_is_left_to_the_parser(data: Any) -> None:
    check_size(data, GraphLimits())
