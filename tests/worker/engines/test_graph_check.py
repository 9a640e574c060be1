"""The graph checker against `/object_info` alone, for engines that cannot check without running."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from darkroom.worker.engines.graph_check import find_problems
from tests.fakes import OBJECT_INFO

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


LOADING = {
    "Load": {
        "input": {"required": {"image": [["a.png"], {"image_upload": True}]}},
        "output": ["IMAGE"],
        "output_node": False,
    },
    "Save": {"input": {"required": {"images": ["IMAGE"], "prefix": ["STRING"]}}, "output": [], "output_node": True},
}


def load(image: str) -> dict[str, object]:
    return {"class_type": "Load", "inputs": {"image": image}}


def save(source: str = "1") -> dict[str, object]:
    return {"class_type": "Save", "inputs": {"images": [source, 0], "prefix": "x"}}


def test_only_nodes_that_an_output_needs_are_checked() -> None:
    prompt = {"1": load("a.png"), "2": save(), "3": load("gone.png")}
    assert find_problems(prompt, LOADING).listed == ()


def test_every_class_is_checked_and_beside_an_unknown_one_every_node() -> None:
    prompt = {"1": load("a.png"), "2": save(), "3": load("gone.png"), "4": {"class_type": "Nothing", "inputs": {}}}
    assert [problem.node_id for problem in find_problems(prompt, LOADING).listed] == ["3", "4"]


def test_files_that_a_node_finds_without_listing_them_are_left_to_the_engine() -> None:
    for name in ("sub/b.png", "b.png [output]"):
        assert find_problems({"1": load(name), "2": save()}, LOADING).listed == ()
    (problem,) = find_problems({"1": load("b.png"), "2": save()}, LOADING).listed
    assert problem.type == "value_not_in_list" and problem.allowed == ["a.png"]


def test_a_problem_has_all_that_a_program_needs() -> None:
    (problem,) = find_problems({"1": load("a.png"), "2": save("99")}, LOADING).listed
    assert problem.as_json() == {
        "field": "images",
        "node_id": "2",
        "class_type": "Save",
        "type": "bad_linked_input",
        "message": "Linked node '99' does not exist: images",
        "allowed": {"type": "IMAGE"},
        "extra": {"received": ["99", 0]},
    }


def test_problems_come_in_the_prompts_order_and_those_of_the_prompt_first() -> None:
    prompt = {"2": save(), "1": load("b.png"), "3": {"class_type": "Nothing", "inputs": {}}}
    prompt["2"] = {"class_type": "Save", "inputs": {"images": ["1", 0]}}
    assert [problem.node_id for problem in find_problems(prompt, LOADING).listed] == ["2", "1", "3"]
    (problem,) = find_problems({"1": load("a.png")}, LOADING).listed
    assert (problem.field, problem.type) == ("workflow_json", "prompt_no_outputs")


def test_a_prompt_of_any_size_is_checked() -> None:
    """The front's own limits apply to it, not the engine's."""
    prompt = {str(number): {"class_type": "Nothing", "inputs": {}} for number in range(60_000)}
    found = find_problems(prompt, LOADING)
    assert (len(found.listed), found.num_unlisted) == (100, 59_900)


def test_very_many_choices_are_listed_in_the_first_problems_only() -> None:
    info = {"Save": {"input": {"required": {"name": [[str(number) for number in range(9000)]]}}, "output_node": True}}
    prompt = {str(number): {"class_type": "Save", "inputs": {"name": "x"}} for number in range(5)}
    assert [len(problem.allowed) for problem in find_problems(prompt, info).listed] == [9000, 9000, 50, 50, 50]


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
