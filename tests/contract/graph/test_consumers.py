"""Consumers of a node's result, which is freed the moment that none needs it."""

from __future__ import annotations

import random

from darkroom.contract.graph.consumers import Consumers
from darkroom.contract.graph.prompt import parse_prompt
from tests.contract.graph.declared import node

PROMPT = parse_prompt(
    {
        "1": node("Number"),
        "2": node("Add", a=["1", 0], b=["1", 0]),
        "3": node("Add", a=["2", 0], b=["1", 0]),
        "4": node("Show", a=["3", 0]),
        "unneeded": node("Show", a=["1", 0]),
    }
)


def counted(*known: str) -> Consumers:
    consumers = Consumers()
    consumers.add_needed(["4"], PROMPT.get, lambda node_id: node_id in known)
    consumers.check_integrity()
    return consumers


def test_a_result_is_free_when_its_last_consumer_is_done() -> None:
    consumers = counted()
    assert [consumers.finish(node_id) for node_id in "1234"] == [[], [], ["2", "1"], ["3", "4"]]


def test_what_is_known_takes_nothing() -> None:
    consumers = counted("3")
    assert consumers.finish("4") == ["3", "4"]


def test_a_node_may_take_more_later() -> None:
    consumers = counted()
    consumers.hold("2", "4")
    assert [consumers.finish(node_id) for node_id in "123"] == [[], [], ["1"]]
    assert consumers.finish("4") == ["3", "2", "4"]


def test_counts_hold_in_any_graph_and_every_result_is_freed_once() -> None:
    rng = random.Random(7)
    for _ in range(50):
        data = {
            str(index): node("Add", **{f"i{k}": [str(rng.randrange(index)), 0] for k in range(rng.randrange(4))})
            for index in range(1, 30)
        }
        prompt = parse_prompt({"0": node("Number"), **data, "end": node("Show", a=[str(rng.randrange(30)), 0])})
        consumers = Consumers()
        consumers.add_needed(["end"], prompt.get, lambda node_id: False)
        needed = set(consumers._takes)
        freed: list[str] = []
        for node_id in (name for name in prompt if name in needed):
            freed += consumers.finish(node_id)
            consumers.check_integrity()
        assert sorted(freed) == sorted(needed)
