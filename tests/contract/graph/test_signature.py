"""Signatures of nodes: everything that their results depend on."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.contract.graph.prompt import parse_prompt
from darkroom.contract.graph.signature import Signatures, Unhashable, canonical, unique_keys
from tests.contract.graph.declared import node, rules

CLASSES = {
    item.class_type: item
    for item in (
        rules("Source", {"value": "INT"}, ("N",)),
        rules("Add", {"a": "N", "b": "INT"}, ("N",)),
        rules("Roll", {}, ("N",), is_idempotent=False),
        rules("Who", {}, ("N",), hidden={"id": "UNIQUE_ID"}),
    )
}
UNIQUE = unique_keys(b"test")


def keys_of(prompt: dict[str, Any], fingerprints: dict[str, Any] | None = None) -> dict[str, bytes]:
    signatures = Signatures(parse_prompt(prompt).get, CLASSES.__getitem__, UNIQUE)
    signatures.add(prompt, fingerprints or {})
    return {node_id: signatures[node_id] for node_id in prompt}


def test_the_same_graph_has_the_same_keys_whatever_its_ids_and_order() -> None:
    first = keys_of({"1": node("Source", value=1), "2": node("Add", a=["1", 0], b=2)})
    second = keys_of({"x": node("Add", b=2, a=["y", 0]), "y": node("Source", value=1)})
    assert (first["1"], first["2"]) == (second["y"], second["x"])


def test_a_changed_value_changes_all_that_follows_and_nothing_else() -> None:
    def graph(value: int) -> dict[str, Any]:
        return {
            "1": node("Source", value=value),
            "2": node("Source", value=9),
            "3": node("Add", a=["1", 0], b=0),
            "4": node("Add", a=["3", 0], b=0),
            "5": node("Add", a=["2", 0], b=0),
        }

    before, after = keys_of(graph(1)), keys_of(graph(2))
    assert [node_id for node_id in before if before[node_id] != after[node_id]] == ["1", "3", "4"]


def test_the_output_that_is_used_counts() -> None:
    keys = keys_of({"1": node("Source", value=1), "2": node("Add", a=["1", 0], b=1), "3": node("Add", a=["1", 1], b=1)})
    assert keys["2"] != keys["3"]


@pytest.mark.parametrize("class_type", ["Roll", "Who"])
def test_the_node_id_counts_where_a_class_says_so(class_type: str) -> None:
    keys = keys_of({"1": node(class_type), "2": node(class_type)})
    assert keys["1"] != keys["2"]
    assert keys["1"] == keys_of({"1": node(class_type)})["1"]


def test_a_fingerprint_counts() -> None:
    graph = {"1": node("Source", value=1)}
    assert keys_of(graph, {"1": ["a"]}) == keys_of(graph, {"1": ["a"]})
    assert keys_of(graph, {"1": ["a"]}) != keys_of(graph, {"1": ["b"]})


@pytest.mark.parametrize("fingerprint", [float("nan"), [float("nan")], object()])
def test_what_cannot_be_compared_is_never_the_same_again(fingerprint: Any) -> None:
    graph = {"1": node("Source", value=1), "2": node("Add", a=["1", 0], b=1)}
    first, second = keys_of(graph, {"1": fingerprint}), keys_of(graph, {"1": fingerprint})
    assert first["1"] != second["1"] and first["2"] != second["2"]


def test_links_into_nothing_and_cycles_have_keys_of_their_own() -> None:
    graph = {
        "1": node("Add", a=["gone", 0], b=1),
        "2": node("Add", a=["3", 0], b=1),
        "3": node("Add", a=["2", 0], b=1),
    }
    first, second = keys_of(graph), keys_of(graph)
    assert not set(first.values()) & set(second.values())


def test_a_chain_of_many_nodes_needs_no_recursion() -> None:
    graph: dict[str, Any] = {"0": node("Source", value=1)}
    for index in range(1, 20_000):
        graph[str(index)] = node("Add", a=[str(index - 1), 0], b=1)
    assert len(set(keys_of(dict(reversed(graph.items()))).values())) == 20_000


def test_values_are_distinguished_by_type_and_mappings_not_by_order() -> None:
    assert canonical({"a": 1, "b": [2]}) == canonical({"b": [2], "a": 1})
    assert canonical([1, 2]) != canonical([2, 1])
    with pytest.raises(Unhashable):
        canonical({"a": object()})
