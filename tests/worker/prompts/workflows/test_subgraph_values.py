"""Values of a sub-graph's use, in each form that the page's versions have saved, and refusals of what is uncertain."""

from __future__ import annotations

import math
from typing import Any

import pytest

from darkroom.worker.prompts.workflows.app_mode import read_app_mode
from darkroom.worker.prompts.workflows.node_uses import uses_on_page
from darkroom.worker.storage.stored_workflow import Place
from tests.worker.prompts.workflows.pages import OBJECT_INFO, Json, node, page
from tests.worker.prompts.workflows.test_to_prompt import inputs_of, refusal_of

# The definition's inputs, and where a link leads from each: two widgets of one input, and a slot that is no widget.
INPUTS = (
    ("clip", "CLIP", ((2, 1),)),
    ("steps", "INT", ((3, 2),)),
    ("text", "STRING", ((2, 0),)),
    ("seed", "INT", ((3, 1), (4, 1))),
    ("value", "INT", ((5, 0),)),
    ("name", "COMBO", ((1, 0),)),
)
WIDGETS = ["steps", "text", "seed", "name"]
VALUES = [12, "a cat", 99, "b.safetensors"]
INNER = [20, "inner", 1, "a.safetensors"]  # of the nodes within; of two widgets, the first one's


def inner_nodes() -> list[Json]:
    sampler = [("model", "MODEL", None, None), ("seed", "INT", None, "seed"), ("steps", "INT", None, "steps")]
    nodes = {
        1: node(1, "Loader", ["a.safetensors"], inputs=[("name", "COMBO", None, "name")], outputs=["MODEL", "CLIP"]),
        2: node(2, "Text", ["inner"], inputs=[("text", "STRING", None, "text"), ("clip", "CLIP", None, None)]),
        3: node(3, "Sampler", [1, "fixed", 20, 8.0, 1.0], inputs=sampler, outputs=["LATENT"]),
        4: node(4, "Sampler", [2, "fixed", 20, 8.0, 1.0], inputs=sampler, outputs=["LATENT"]),
        5: node(5, "Forced", [3], inputs=[("value", "INT", None, None)], outputs=["INT"]),
    }
    for link, (_, target, slot) in enumerate(inner_links(), start=1):
        nodes[target]["inputs"][slot]["link"] = link
    return list(nodes.values())


def inner_links() -> list[tuple[int, int, int]]:
    return [(index, target, slot) for index, (_, _, targets) in enumerate(INPUTS) for target, slot in targets]


DEFINITION: Json = {
    "id": "sub",
    "nodes": inner_nodes(),
    "links": [
        {"id": link, "origin_id": -10, "origin_slot": index, "target_id": target, "target_slot": slot}
        for link, (index, target, slot) in enumerate(inner_links(), start=1)
    ],
    "inputs": [{"name": name, "type": kind} for name, kind, _ in INPUTS],
    "outputs": [],
}
# As a current page saves it: widget inputs without a link and a label are left out.
SHOWN = [("clip", "CLIP", None, None), ("seed", "INT", None, "seed")]


def document(values: Any, named: Json | None = None, definitions: list[Json] | None = None, **host: Any) -> Json:
    given: Json = {"inputs": SHOWN} | host
    use = node(7, given.pop("kind", "sub"), values, given.pop("mode", 0), **given)
    if named is not None:
        use["widgets_values_named"] = named
    return page(use, definitions={"subgraphs": definitions or [DEFINITION]})


def set_by(found: dict[str, Json], prefix: str = "7:") -> list[Any]:
    """Return the values that the nodes within got for the widgets of the use."""
    assert found[f"{prefix}3"]["seed"] == found[f"{prefix}4"]["seed"]
    places = (("3", "steps"), ("2", "text"), ("3", "seed"), ("1", "name"))
    return [found[prefix + node_id][name] for node_id, name in places]


NAMED = dict(zip(WIDGETS, VALUES, strict=True))
OUTER = [["-1", "text"], ["3", "cfg"], ["-1", "seed"]]


@pytest.mark.parametrize(
    ("values", "host", "expected"),
    [
        (VALUES, {}, VALUES),
        (VALUES, {"inputs": []}, VALUES),
        ([12.0, "a cat", 10**400, "b.safetensors"], {}, [12, "a cat", 10**400, "b.safetensors"]),
        (VALUES, {"properties": {"proxyWidgets": []}}, VALUES),
        ([12, None, None, None], {}, [12, "inner", 1, "a.safetensors"]),
        ([], {}, INNER),
        ([12, "a cat", 99, "randomize", "b.safetensors"], {}, VALUES),  # with the control of the seed
        (VALUES, {"named": NAMED}, VALUES),
        (VALUES[::-1], {"named": dict(reversed(NAMED.items()))}, VALUES),  # inputs that were moved since
        (VALUES[:2], {"named": dict(list(NAMED.items())[:2])}, [12, "a cat", 1, "a.safetensors"]),
        (NAMED, {}, VALUES),
        # Entries of nodes within, which hold their values themselves; then with the values of the use's own widgets.
        ([], {"properties": {"proxyWidgets": [["3", "cfg"], ["3", "steps"]]}}, INNER),
        (VALUES, {"properties": {"proxyWidgets": [["3", "cfg"]]}}, VALUES),
        (["a cat", None, 99], {"properties": {"proxyWidgets": OUTER}}, [20, "a cat", 99, "a.safetensors"]),
        (["a cat"], {"properties": {"proxyWidgets": OUTER}}, [20, "a cat", 1, "a.safetensors"]),
        # A list for the entries, in another order than the inputs, which only fits so.
        (
            ["b.safetensors", 12, "a cat", 99],
            {"properties": {"proxyWidgets": [["1", "name"], ["3", "steps"], ["2", "text"], ["4", "seed"]]}},
            VALUES,
        ),
    ],
)
def test_the_values_of_a_use_reach_the_widgets_that_its_inputs_stand_for(
    values: Any, host: Json, expected: list[Any]
) -> None:
    assert set_by(inputs_of(document(values, **host))) == expected


def test_a_socket_beside_a_widget_takes_the_widget_s_value() -> None:
    definition = DEFINITION | {"nodes": inner_nodes(), "links": [*DEFINITION["links"]]}
    definition["nodes"].append(node(8, "Forced", inputs=[("value", "INT", 50, None)], outputs=["INT"]))
    link = {"id": 50, "origin_id": -10, "origin_slot": 1, "target_id": 8, "target_slot": 0}
    definition["links"].append(link)
    for values, steps in (([], 20), (VALUES, 12)):
        assert inputs_of(document(values, definitions=[definition]))["7:8"]["value"] == steps


def test_a_value_for_a_widget_within_is_set_there() -> None:
    found = inputs_of(document([7.5], properties={"proxyWidgets": [["3", "cfg"]]}))
    assert (found["7:3"]["cfg"], found["7:4"]["cfg"]) == (7.5, 8.0)


def test_values_that_the_page_kept_of_an_older_form_apply_before_the_list() -> None:
    kept = [
        {"originalEntry": ["-1", "text"], "hostValue": "a dog"},
        {"originalEntry": ["-1", "gone"], "hostValue": 1},
        {"originalEntry": ["3", "cfg"], "hostValue": 2.0},
        "text",
    ]
    found = inputs_of(document(VALUES, properties={"proxyWidgetErrorQuarantine": kept}))
    assert set_by(found) == [12, "a dog", 99, "b.safetensors"] and found["7:3"]["cfg"] == 8.0


def test_an_input_that_a_link_sets_takes_no_value_of_the_list() -> None:
    given = document(VALUES, inputs=[("text", "STRING", 1, "text")])
    given["nodes"].append(node(8, "PrimitiveNode", ["linked", "fixed"], outputs=["STRING"]))
    given["links"] = [[1, 8, 0, 7, 0, "STRING"]]
    assert set_by(inputs_of(given)) == [12, "linked", 99, "b.safetensors"]
    given["nodes"][0]["widgets_values"][1] = 5  # of another type, which nobody reads
    assert set_by(inputs_of(given)) == [12, "linked", 99, "b.safetensors"]


def nested(values: list[Any], **properties: Any) -> list[Json]:
    """Return an outer definition whose inputs are those of the use within it, in another order."""
    order = ["name", "text", "seed", "steps"]
    inputs = [(name, "*", index + 1, name) for index, name in enumerate(order)]
    links = [
        {"id": index + 1, "origin_id": -10, "origin_slot": index, "target_id": 6, "target_slot": index}
        for index in range(len(order))
    ]
    outer = {
        "id": "outer",
        "nodes": [node(6, "sub", values, inputs=inputs, properties=properties)],
        "links": links,
        "inputs": [{"name": name, "type": "*"} for name in order],
    }
    return [DEFINITION, outer]


def test_a_use_within_another_takes_the_values_of_the_outermost() -> None:
    outermost = ["b.safetensors", "a cat", 99, 12]
    given = document(outermost, definitions=nested([1, "", 2, "a.safetensors"]), kind="outer", inputs=[])
    assert set_by(inputs_of(given), "7:6:") == VALUES
    given = document([], definitions=nested(VALUES), kind="outer", inputs=[])
    assert set_by(inputs_of(given), "7:6:") == VALUES


def test_a_definition_whose_input_leads_to_a_use_of_itself_is_refused() -> None:
    itself = nested([])[1]
    itself["nodes"][0]["type"] = "outer"
    problems = refusal_of(document([1, "", 2, "a"], definitions=[itself], kind="outer", inputs=[]))
    assert [problem["type"] for problem in problems] == ["nested_subgraph"]


def test_a_value_for_the_widget_of_a_use_within_reaches_the_node_in_it() -> None:
    definitions = nested([])
    definitions[1]["inputs"], definitions[1]["links"] = [], []
    definitions[1]["nodes"][0]["inputs"] = []
    listed = {"proxyWidgets": [["6", "text"], ["6", "steps"]]}
    given = document(["a cat", 12], definitions=definitions, kind="outer", inputs=[], properties=listed)
    assert set_by(inputs_of(given), "7:6:") == [12, "a cat", 1, "a.safetensors"]


@pytest.mark.parametrize(
    ("values", "host"),
    [
        (VALUES[:3], {}),
        ([*VALUES, 1], {}),
        ([12, "a cat", 99, "sometimes", "b.safetensors"], {}),
        (["b.safetensors", 12, "a cat", 99], {}),  # in the order of no version
        ([12, 99, "a cat", "b.safetensors"], {}),  # a seed as the text
        ([12.5, "a cat", 99, "b.safetensors"], {}),
        ([math.inf, "a cat", 99, "b.safetensors"], {}),
        ([math.nan, "a cat", 99, "b.safetensors"], {}),
        ([True, "a cat", 99, "b.safetensors"], {}),
        ([[], "a cat", 99, "b.safetensors"], {}),
        ([12, "a cat", 99, {}], {}),
        (["a cat", None, 99, 1], {"properties": {"proxyWidgets": OUTER}}),
        ([1, 2], {"properties": {"proxyWidgets": [["3", "steps"]]}}),
        # Two readings that both fit: a list that may be of the inputs or of the entries.
        (VALUES, {"properties": {"proxyWidgets": [["3", "seed"], ["2", "text"], ["3", "steps"], ["1", "name"]]}}),
        ([99], {"inputs": [("steps", "INT", None, "steps")]}),
        (VALUES[::-1], {"named": NAMED}),
        ([12, "a cat", 99, 5], {"named": NAMED | {"name": 5}}),
    ],
)
def test_values_that_cannot_be_assigned_with_certainty_are_refused_by_name(values: list[Any], host: Json) -> None:
    (problem,) = refusal_of(document(values, **host))
    assert (problem["type"], problem["node_id"], problem["class_type"]) == ("ambiguous_values", "7", "sub")
    assert problem["field"] == "input.workflow_json" and problem["allowed"] == WIDGETS
    assert "got " in problem["message"] and "expected " in problem["message"]


def test_every_use_with_uncertain_values_is_named_and_one_that_does_not_run_is_not() -> None:
    given = document([1, 2])
    given["nodes"] += [node(8, "sub", [1, 2]), node(9, "sub", [1, 2], 2), node(10, "sub", [1, 2], 4)]
    assert [problem["node_id"] for problem in refusal_of(given)] == ["7", "8"]


def test_widgets_of_classes_that_the_engine_lacks_keep_their_place_in_the_list() -> None:
    definition = DEFINITION | {"nodes": [{**item, "type": "Unknown"} for item in inner_nodes() if item["id"] == 2]}
    definition["nodes"] += [item for item in inner_nodes() if item["id"] != 2]
    found = refusal_of(document(VALUES, definitions=[definition]))
    assert [(problem["type"], problem["node_id"]) for problem in found] == [("unknown_class", "7:2")]


def test_the_page_s_app_mode_and_a_plan_take_the_same_widgets() -> None:
    given = document(VALUES)
    given["extra"] = {"linearData": {"inputs": [[7, "text"], [7, "seed"], [7, "steps"]], "outputs": []}}
    assert read_app_mode(given, OBJECT_INFO).inputs == {
        "text": (Place("7:2", "text"),),
        "seed": (Place("7:3", "seed"), Place("7:4", "seed")),
        "steps": (Place("7:3", "steps"),),
    }
    used = {use.id: use.values for use in uses_on_page(given, OBJECT_INFO)}
    assert used["7:1"]["name"] == "b.safetensors" and used["7:2"]["text"] == "a cat"


def test_names_beside_the_values_of_a_node_tell_them_from_those_of_an_older_class() -> None:
    values = ["before", 7, "randomize", "new", 20, 8.0, 0.5]
    names = ["first", "seed", "control_after_generate", "fourth", "steps", "cfg", "denoise"]
    saved = node(3, "Sampler", values) | {"widgets_values_named": dict(zip(names, values, strict=True))}
    assert inputs_of(page(saved))["3"] == {"seed": 7, "steps": 20, "cfg": 8.0, "denoise": 0.5}


def test_names_that_are_not_those_of_the_class_leave_the_values_in_their_order() -> None:
    values = [7, "fixed", 20, 8.0, 0.5]
    names = ["noise_seed", "control_after_generate", "steps", "cfg", "denoise"]
    saved = node(3, "Sampler", values) | {"widgets_values_named": dict(zip(names, values, strict=True))}
    assert inputs_of(page(saved))["3"] == {"seed": 7, "steps": 20, "cfg": 8.0, "denoise": 0.5}
