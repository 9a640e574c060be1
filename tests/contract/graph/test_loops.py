"""Loops of a prompt: which end closes which start, what lies between, and how often it runs."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.contract.graph.loops import MAX_LOOPS, FoundLoops, find_loops, iterations_of
from darkroom.contract.graph.prompt import parse_prompt
from tests.contract.graph.declared import node

KINDS: Any = {"Start": "start", "End": "end"}


def found(prompt: dict[str, Any]) -> FoundLoops:
    return find_loops(parse_prompt(prompt), lambda name: KINDS.get(name, ""), lambda name: name == "Save")


def problems_of(prompt: dict[str, Any]) -> dict[str, object]:
    loops = found(prompt)
    return {node_id: problem.extra_info["loop_error_type"] for node_id, problem in loops.problems.items()}


SIMPLE = {
    "before": node("Make"),
    "s": node("Start", value=["before", 0]),
    "a": node("Change", value=["s", 0], other=["before", 0]),
    "e": node("End", output_value=["a", 0]),
    "save": node("Save", value=["e", 0]),
}
NESTED = {
    "s1": node("Start"),
    "a": node("Change", value=["s1", 0]),
    "s2": node("Start", value=["a", 0]),
    "b": node("Change", value=["s2", 0], outer=["s1", 0]),
    "e2": node("End", output_value=["b", 0]),
    "c": node("Change", value=["e2", 0]),
    "e1": node("End", output_value=["c", 0]),
    "save": node("Save", value=["e1", 0]),
}


def test_a_prompt_without_loops_has_none() -> None:
    assert found({"a": node("Make"), "b": node("Save", value=["a", 0])}) == FoundLoops({}, {})


def test_the_body_is_what_the_start_feeds_and_the_end_needs() -> None:
    loops = found(SIMPLE | {"unused": node("Change", value=["a", 0])})
    assert loops.problems == {}
    (loop,) = loops.by_end.values()
    assert (loop.start, loop.end, loop.body) == ("s", "e", ("a",))
    assert loops.roots_of(["a", "save", "s"]) == ["e", "save"]


def test_inner_loops_close_first_and_belong_to_the_outer_body() -> None:
    loops = found(NESTED)
    assert loops.problems == {}
    assert loops.by_end["e2"].body == ("b",) and loops.by_end["e2"].start == "s2"
    assert loops.by_end["e1"].body == ("a", "s2", "b", "e2", "c") and loops.by_end["e1"].start == "s1"
    assert loops.root_of("b") == loops.root_of("e2") == "e1"
    assert loops.times("b", {"s1": 3.0, "s2": 5.0}.__getitem__) == 15
    assert loops.times("c", {"s1": 3.0, "s2": 5.0}.__getitem__) == 3 and loops.times("save", lambda _: 9) == 1


def test_loops_may_follow_one_another() -> None:
    more = {
        "s9": node("Start", value=["e", 0]), "a9": node("Change", value=["s9", 0]),
        "e9": node("End", output_value=["a9", 0]), "save": node("Save", value=["e9", 0]),
    }  # fmt: skip
    loops = found(SIMPLE | more)
    assert loops.problems == {} and {loop.start: end for end, loop in loops.by_end.items()} == {"s": "e", "s9": "e9"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"e": node("Change", value=["a", 0])}, {"s": "loop_start_without_end"}),
        ({"s": node("Make")}, {"e": "loop_end_without_start"}),
        ({"other": node("Save", value=["a", 0])}, {"s": "loop_escape"}),
        ({"e9": node("End", output_value=["a", 0])}, {"e9": "loop_end_without_start", "s": "loop_escape"}),
        (
            {"s9": node("Start"), "e": node("End", output_value=["a", 0], next=["s9", 0])},
            {"e": "ambiguous_loop_nesting", "s": "loop_start_without_end", "s9": "loop_start_without_end"},
        ),
        ({"e": node("End", output_value=["a", 0], accumulate=["a", 0])}, {"e": "loop_accumulate_from_body"}),
        ({"s": node("Start", **{"mode": "simple", "mode.num_iterations": 5000})}, {"s": "loop_too_long"}),
        ({"s": node("Start", **{"mode": "simple", "mode.num_iterations": 10**400})}, {"s": "loop_too_long"}),
    ],
)
def test_a_loop_that_cannot_be_told_apart_is_named(changes: dict[str, Any], expected: dict[str, str]) -> None:
    assert problems_of(SIMPLE | changes) == expected


@pytest.mark.parametrize(
    ("changes", "node_id", "field", "allowed", "received"),
    [
        ({"mode": "simple", "mode.num_iterations": 5000}, "s", "mode.num_iterations", ("min", 0, "max", 1000), 5000),
        (
            {"mode": "For", "mode.start_iteration_index": 7, "mode.max_iteration": 3008, "mode.step": 3},
            *("s", "mode.max_iteration", ("max", 3007), 3008),
        ),
        (
            {"mode": "For", "mode.start_iteration_index": 0, "mode.max_iteration": -2001, "mode.step": -2},
            *("s", "mode.max_iteration", ("min", -2000), -2001),
        ),
    ],
)
def test_a_loop_that_is_too_long_names_the_input_and_the_most_it_may_be(
    changes: dict[str, Any], node_id: str, field: str, allowed: tuple[Any, ...], received: int
) -> None:
    explained = found(SIMPLE | {"s": node("Start", **changes)}).problems[node_id].explanation
    assert explained is not None and (explained.type, explained.field) == ("loop_too_long", field)
    assert explained.allowed == {"type": "INT", **dict(zip(allowed[::2], allowed[1::2], strict=True))}
    assert explained.extra == {"received": received}
    (name,) = {"min", "max"} & explained.allowed.keys() if len(allowed) == 2 else {"max"}
    as_allowed = SIMPLE | {"s": node("Start", **changes | {field: explained.allowed[name]})}
    assert found(as_allowed).problems == {}


def test_an_end_that_waits_for_its_body_names_the_input() -> None:
    waiting = SIMPLE | {"e": node("End", output_value=["a", 0], accumulate=["a", 0])}
    explained = found(waiting).problems["e"].explanation
    assert explained is not None and explained.field == "accumulate" and explained.allowed == [True, False]


def test_an_output_within_a_loop_that_feeds_its_end_is_no_escape() -> None:
    shown = {"save9": node("Save", value=["a", 0]), "e": node("End", output_value=["a", 0], termination0=["save9", 0])}
    loops = found(SIMPLE | shown)
    assert loops.problems == {} and loops.by_end["e"].body == ("a", "save9")


def test_loops_that_wait_for_each_other_are_found_in_time() -> None:
    crossed = {
        "s": node("Start", value=["e2", 0]), "e": node("End", output_value=["s", 0]),
        "s2": node("Start", value=["e", 0]), "e2": node("End", output_value=["s2", 0]),
    }  # fmt: skip
    found(crossed)  # what is wrong with it is found as a cycle


def test_a_prompt_has_a_largest_number_of_loops() -> None:
    many = {f"s{index}": node("Start") for index in range(MAX_LOOPS + 1)}
    assert set(problems_of(many).values()) == {"too_many_loops"}


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"mode": "simple", "mode.num_iterations": 4}, 4),
        ({"mode": "For", "mode.start_iteration_index": 0, "mode.max_iteration": 10, "mode.step": 3}, 4),
        ({"mode": "For", "mode.start_iteration_index": 5, "mode.max_iteration": 5, "mode.step": 1}, 0),
        ({"mode": "For", "mode.start_iteration_index": 9, "mode.max_iteration": 5, "mode.step": 1}, 0),
        ({"mode": "For", "mode.start_iteration_index": 0, "mode.max_iteration": 5, "mode.step": 0}, None),
        ({"mode": "simple", "mode.num_iterations": ["a", 0]}, None),
        ({"mode": "List", "mode.list": ["a", 0]}, None),
        ({}, None),
    ],
)
def test_iterations_are_known_from_numbers(inputs: dict[str, Any], expected: float | None) -> None:
    assert iterations_of(inputs, lambda value: value if isinstance(value, int) else None) == expected
