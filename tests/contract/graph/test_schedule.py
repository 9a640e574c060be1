"""Choice of the node that runs next."""

from __future__ import annotations

import random
from typing import Any

import pytest

from darkroom.contract.graph.prompt import parse_prompt
from darkroom.contract.graph.schedule import NodeInputError, Schedule
from tests.contract.graph.declared import node, rules

CLASSES = {
    item.class_type: item
    for item in (
        rules("Load", {}, ("A", "B", "C")),
        rules("Empty", {}, ("A",)),
        rules("One", {"a": "*"}, ("A",)),
        rules("Many", {}, ("A",), optional=dict.fromkeys("abcdefgh", "*")),
        rules("Slow", {}, ("A",), is_async=True),
        rules("Lazy", {"now": "*", "later": ("*", {"lazy": True})}, ("A",)),
        rules("Show", {"a": "*"}, ("A",), is_output=True),
    )
}


def schedule_of(prompt: dict[str, Any], known: frozenset[str] = frozenset()) -> Schedule:
    nodes = parse_prompt(prompt)
    return Schedule(nodes.__getitem__, lambda item: CLASSES[item.class_type], known.__contains__)


def order_of(schedule: Schedule) -> list[str]:
    order = []
    while (node_id := schedule.next()) is not None:
        order.append(node_id)
        schedule.finish(node_id)
        schedule.check_integrity(order)
    return order


TEXT_TO_IMAGE = {
    "1": node("Load"),
    "2": node("One", a=["1", 1]),
    "3": node("One", a=["1", 1]),
    "4": node("Empty"),
    "5": node("Many", a=["1", 0], b=["2", 0], c=["3", 0], d=["4", 0]),
    "6": node("Many", a=["5", 0], b=["1", 2]),
    "7": node("Show", a=["6", 0]),
}


def test_text_to_image_runs_in_comfyuis_order() -> None:
    schedule = schedule_of(TEXT_TO_IMAGE)
    schedule.add("7")
    assert order_of(schedule) == ["1", "4", "3", "2", "5", "6", "7"]
    assert schedule.is_empty


def test_what_is_known_does_not_run() -> None:
    schedule = schedule_of(TEXT_TO_IMAGE, frozenset({"1", "3", "4"}))
    schedule.add("7")
    assert order_of(schedule) == ["2", "5", "6", "7"]


def test_a_ready_output_comes_first_then_what_feeds_one() -> None:
    prompt = {
        "far": node("Empty"),
        "between": node("One", a=["far", 0]),
        "late": node("Many", a=["between", 0]),
        "end": node("Show", a=["late", 0]),
        "near": node("Empty"),
        "shown": node("Show", a=["near", 0]),
    }
    schedule = schedule_of(prompt)
    schedule.add("end")
    schedule.add("shown")
    assert order_of(schedule) == ["near", "shown", "far", "between", "late", "end"]


def test_async_nodes_start_before_others() -> None:
    prompt = {
        "a": node("Empty"),
        "b": node("Slow"),
        "c": node("Many", a=["b", 0], b=["a", 0]),
        "d": node("Show", a=["c", 0]),
    }
    schedule = schedule_of(prompt)
    schedule.add("d")
    assert schedule.next() == "b"


def test_lazy_inputs_run_when_they_are_asked_for() -> None:
    prompt = {
        "a": node("Empty"),
        "b": node("Empty"),
        "c": node("Lazy", now=["a", 0], later=["b", 0]),
        "d": node("Show", a=["c", 0]),
    }
    schedule = schedule_of(prompt)
    schedule.add("d")
    assert schedule.next() == "a"
    schedule.finish("a")
    assert schedule.next() == "c"
    schedule.need("c", "later")
    schedule.put_back("c")
    assert order_of(schedule) == ["b", "c", "d"]


def test_a_lazy_input_must_be_a_link() -> None:
    schedule = schedule_of({"c": node("Lazy", now=1, later=2), "d": node("Show", a=["c", 0])})
    schedule.add("d")
    with pytest.raises(NodeInputError, match="constant"):
        schedule.need("c", "later")
    with pytest.raises(NodeInputError, match="no input"):
        schedule.need("c", "nothing")


def test_a_held_node_waits_until_it_is_let_go() -> None:
    schedule = schedule_of({"a": node("Slow"), "b": node("Show", a=["a", 0])})
    schedule.add("b")
    assert schedule.next() == "a"
    let_go = schedule.hold("a")
    schedule.put_back("a")
    assert (schedule.next(), schedule.waits_for_outside) == (None, True)
    schedule.check_integrity()
    let_go()
    assert not schedule.waits_for_outside
    assert order_of(schedule) == ["a", "b"]


def test_a_cycle_leaves_nothing_ready_and_is_named() -> None:
    prompt = {
        "start": node("Empty"),
        "a": node("Many", a=["b", 0], b=["start", 0]),
        "b": node("One", a=["a", 0]),
        "c": node("Show", a=["a", 0]),
    }
    schedule = schedule_of(prompt)
    schedule.add("c")
    assert order_of(schedule) == ["start"]
    assert schedule.cycle() == ["c", "a", "b"]


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs_run_every_node_after_its_sources(seed: int) -> None:
    chance = random.Random(seed)
    prompt: dict[str, Any] = {}
    for index in range(60):
        sources = chance.sample(range(index), min(index, chance.randrange(4)))
        inputs = {name: [str(source), 0] for name, source in zip("abcdefgh", sources, strict=False)}
        prompt[str(index)] = node("Many", **inputs)
    prompt["out"] = node("Show", a=["59", 0])
    schedule = schedule_of(prompt)
    schedule.add("out")
    done: set[str] = set()
    for node_id in order_of(schedule):
        assert {value[0] for value in prompt[node_id]["inputs"].values()} <= done
        done.add(node_id)
    assert schedule.is_empty and "59" in done
