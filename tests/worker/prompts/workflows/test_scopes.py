"""Sub-graphs and group nodes: ids, promoted widgets, nesting, limits."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.worker.errors import RequestRejected
from tests.worker.prompts.workflows.pages import Json, node, page, save
from tests.worker.prompts.workflows.test_to_prompt import inputs_of, refusal_of

INNER_LINKS = [
    {"id": 1, "origin_id": -10, "origin_slot": 0, "target_id": 5, "target_slot": 0},
    {"id": 2, "origin_id": -10, "origin_slot": 1, "target_id": 5, "target_slot": 1},
    {"id": 3, "origin_id": 5, "origin_slot": 0, "target_id": -20, "target_slot": 0},
]
INNER = node(
    5,
    "Model",
    [0.2],
    inputs=[("model", "MODEL", 1, None), ("strength", "FLOAT", 2, "strength")],
    outputs=["MODEL"],
)
DEFINITION: Json = {
    "id": "sub",
    "name": "Sub",
    "nodes": [INNER],
    "links": INNER_LINKS,
    "inputs": [{"name": "model", "type": "MODEL"}, {"name": "strength", "type": "FLOAT"}],
    "outputs": [{"name": "MODEL", "type": "MODEL"}],
}
LOADER = node(1, "Loader", ["b.safetensors"], outputs=["MODEL", "CLIP"])


def use(node_id: int, model: int | None, values: list[Any], **properties: Any) -> Json:
    inputs = [("model", "MODEL", model, None), ("strength", "FLOAT", None, "strength")]
    return node(node_id, "sub", values, inputs=inputs, outputs=["MODEL"], properties=properties)


def with_definitions(*nodes: Json, links: list[list[Any]], definitions: list[Json] | None = None) -> Json:
    return page(*nodes, links=links, definitions={"subgraphs": definitions or [DEFINITION]})


LINKS = [[1, 1, 0, 2, 0, "MODEL"], [2, 2, 0, 9, 0, "MODEL"]]


@pytest.mark.parametrize(
    ("values", "properties", "strength"),
    [
        ([0.9], {}, 0.9),
        ([], {}, 0.2),
        ([0.9], {"proxyWidgets": [["-1", "strength"]]}, 0.9),
        ([None, 0.4], {"proxyWidgets": [["-1", "strength"], ["5", "strength"]]}, 0.4),
    ],
)
def test_a_use_of_a_sub_graph_sets_the_widgets_that_it_promotes(
    values: list[Any], properties: Json, strength: float
) -> None:
    found = inputs_of(with_definitions(LOADER, use(2, 1, values, **properties), save(2), links=LINKS))
    assert found["2:5"] == {"model": ["1", 0], "strength": strength}
    assert found["9"]["images"] == ["2:5", 0] and "2" not in found


def test_two_uses_of_one_sub_graph_are_two_sets_of_nodes() -> None:
    links = [*LINKS[:1], [2, 4, 0, 9, 0, "MODEL"], [3, 2, 0, 4, 0, "MODEL"]]
    found = inputs_of(with_definitions(LOADER, use(2, 1, [0.1]), use(4, 3, [0.3]), save(2), links=links))
    assert found["2:5"] == {"model": ["1", 0], "strength": 0.1}
    assert found["4:5"] == {"model": ["2:5", 0], "strength": 0.3}


def test_a_nested_sub_graph_takes_values_and_links_from_the_outermost() -> None:
    outer = DEFINITION | {"id": "outer", "nodes": [use(5, 1, [0.6])]}
    outer["nodes"][0]["inputs"][1]["link"] = 2
    host = use(2, 1, [0.8]) | {"type": "outer"}
    found = inputs_of(with_definitions(LOADER, host, save(2), links=LINKS, definitions=[DEFINITION, outer]))
    assert found["2:5:5"] == {"model": ["1", 0], "strength": 0.8}
    assert found["9"]["images"] == ["2:5:5", 0]


def test_a_bypassed_use_passes_its_input_on_and_a_muted_one_nothing() -> None:
    end = node(9, "Save", ["pic"], inputs=[("images", "MODEL", 2, None)])
    for mode, images in ((4, ["1", 0]), (2, None)):
        found = inputs_of(with_definitions(LOADER, use(2, 1, []) | {"mode": mode}, end, links=LINKS))
        assert found["9"].get("images") == images and "2:5" not in found


def test_a_sub_graph_in_itself_and_one_that_grows_past_the_limit_are_refused() -> None:
    itself = DEFINITION | {"nodes": [use(5, 1, [])]}
    (problem,) = refusal_of(with_definitions(use(2, None, []), links=[], definitions=[itself]))
    assert problem["type"] == "nested_subgraph"
    doubling = [
        {"id": f"s{level}", "nodes": [node(n, f"s{level + 1}") for n in (1, 2)], "links": []} for level in range(40)
    ]
    (problem,) = refusal_of(page(node(1, "s0"), definitions={"subgraphs": doubling}), max_nodes=1000)
    assert problem["type"] == "max_nodes" and problem["allowed"] == {"maximum": 1000}


def test_a_group_node_shares_its_values_among_its_nodes() -> None:
    inner = [
        node(-1, "Model", [0.1], inputs=[("model", "MODEL", None, None)], outputs=["MODEL"]),
        node(-1, "Model", [0.2], inputs=[("model", "MODEL", None, None)], outputs=["MODEL"]),
    ]
    group = {"nodes": inner, "links": [[0, 0, 1, 0, 4, "MODEL"]], "external": []}
    host = node(2, "workflow>Twice", [0.5, 0.6], inputs=[("model", "MODEL", 1, None)], outputs=["MODEL"])
    found = inputs_of(page(LOADER, host, save(2), links=LINKS, extra={"groupNodes": {"Twice": group}}))
    assert found["2:0"] == {"model": ["1", 0], "strength": 0.5}
    assert found["2:1"] == {"model": ["2:0", 0], "strength": 0.6}
    assert found["9"]["images"] == ["2:1", 0]


def test_names_that_uses_of_a_group_make_are_counted_before_they_are_kept() -> None:
    inner = [{"type": "Text", "inputs": [{"name": "n" * 40_000, "type": "STRING"}]} for _ in range(100)]
    uses = [node(number, "workflow>Named") for number in range(300)]
    with pytest.raises(RequestRejected) as raised:
        inputs_of(page(*uses, extra={"groupNodes": {"Named": {"nodes": inner, "links": []}}}))
    assert raised.value.problems[0].type == "max_bytes"


def test_a_group_node_names_a_reroute_for_what_takes_it_and_shows_the_outputs_that_it_is_told_to() -> None:
    inner = [
        node(-1, "Reroute", inputs=[("", "*", None, None)], outputs=["*"]),
        node(-1, "Model", [0.1], inputs=[("model", "MODEL", None, None)], outputs=["MODEL"]),
        node(-1, "Model", [0.2], inputs=[("model", "MODEL", None, None)], outputs=["MODEL"]),
    ]
    group = {
        "nodes": inner,
        "links": [[0, 0, 1, 0, 4, "*"], [1, 0, 2, 0, 5, "MODEL"]],
        "external": [],
        "config": {"1": {"output": {"0": {"visible": True}}}},
    }
    inputs = [("strength", "FLOAT", None, "strength"), ("MODEL", "MODEL", 1, None)]
    host = node(2, "workflow>Chain", [0.5, 0.6], inputs=inputs, outputs=["MODEL", "MODEL"])
    found = inputs_of(page(LOADER, host, save(2), links=LINKS, extra={"groupNodes": {"Chain": group}}))
    assert found["2:1"] == {"model": ["1", 0], "strength": 0.5}
    assert found["9"]["images"] == ["2:1", 0]
