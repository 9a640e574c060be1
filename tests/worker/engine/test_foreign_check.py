"""A graph held against `/object_info` alone, for engines that cannot check without running."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import OBJECT_INFO
from worker.engine.foreign_check import find_problems

INFO = {
    **OBJECT_INFO,
    "Source": {"input": {}, "output": ["IMAGE", "MASK"], "output_node": False},
    "Save": {"input": {"required": {"images": ["IMAGE", {}]}}, "output": [], "output_node": True},
}
GOOD: dict[str, Any] = {
    "1": {"class_type": "Source", "inputs": {}},
    "2": {"class_type": "Save", "inputs": {"images": ["1", 0]}},
    "3": {"class_type": "Draw", "inputs": {"text": "a", "size": 1}},
    "4": {"class_type": "Fail", "inputs": {"kind": "ValueError"}},
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["", "1", "Source"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["1", "class_type"]), inner, max_size=2)
    ),
    max_leaves=5,
)
PLACES = [("1",), ("2",), ("1", "class_type"), ("2", "inputs"), ("2", "inputs", "images"), ("2", "inputs", "images", 0)]
PLACES += [("2", "inputs", "images", 1), ("3", "inputs", "size"), ("4", "inputs", "kind"), ("4", "class_type")]


def changed(place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    prompt: Any = copy.deepcopy(GOOD)
    inner = prompt
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return prompt  # type: ignore[no-any-return]


def test_a_good_prompt_has_no_problems() -> None:
    assert find_problems(GOOD, INFO).listed == ()


@given(st.sampled_from(PLACES), VALUES)
def test_whatever_stands_anywhere_is_answered_and_never_raises(place: tuple[Any, ...], value: Any) -> None:
    for problem in find_problems(changed(place, value), INFO).listed:
        assert problem.message


@pytest.mark.parametrize("place", [("2", "inputs"), ("3", "inputs", "size"), ("4", "class_type")])
def test_what_is_of_a_wrong_type_is_named_at_its_node(place: tuple[Any, ...]) -> None:
    (problem,) = find_problems(changed(place, [1]), INFO).listed
    assert problem.node_id == place[0]
