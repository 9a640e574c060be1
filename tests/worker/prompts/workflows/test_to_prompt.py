"""Pages and the prompts that they become, one rule at a time."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.worker.errors import RequestRejected
from darkroom.worker.prompts.workflows.page_graph import is_page_format
from darkroom.worker.prompts.workflows.to_prompt import to_prompt
from tests.worker.prompts.workflows.pages import OBJECT_INFO, Json, node, page, sampler, save

LOADER = node(1, "Loader", ["b.safetensors"], outputs=["MODEL", "CLIP"])
TEXT = node(2, "Text", ["a cat"], inputs=[("clip", "CLIP", 5, None)], outputs=["CONDITIONING"])
LINKS: list[list[Any]] = [
    [1, 1, 0, 3, 0, "MODEL"],
    [2, 2, 0, 3, 4, "CONDITIONING"],
    [3, 3, 0, 9, 0, "LATENT"],
    [5, 1, 1, 2, 1, "CLIP"],
]
SAMPLER_INPUTS = {
    "model": ["1", 0],
    "seed": 7,
    "steps": 20,
    "cfg": 8.0,
    "positive": ["2", 0],
    "denoise": 0.5,
}


def inputs_of(document: Json) -> dict[str, Json]:
    prompt = to_prompt(document, OBJECT_INFO, lambda count: count - 1)
    return {node_id: entry["inputs"] for node_id, entry in prompt.items()}


def refusal_of(document: Json, **limits: int) -> list[Json]:
    with pytest.raises(RequestRejected) as raised:
        to_prompt(document, OBJECT_INFO, lambda _count: 0, **limits)
    return [problem.as_json() for problem in raised.value.problems]


def test_a_page_becomes_a_prompt_with_seed_control_passed_over() -> None:
    prompt = to_prompt(page(LOADER, TEXT, sampler(), save(3), links=LINKS), OBJECT_INFO, lambda _count: 0)
    assert prompt == {
        "1": {"class_type": "Loader", "inputs": {"name": "b.safetensors"}, "_meta": {"title": "Loader"}},
        "2": {"class_type": "Text", "inputs": {"text": "a cat", "clip": ["1", 1]}, "_meta": {"title": "Text"}},
        "3": {"class_type": "Sampler", "inputs": SAMPLER_INPUTS, "_meta": {"title": "Sampler"}},
        "9": {
            "class_type": "Save",
            "inputs": {"filename_prefix": "pic", "images": ["3", 0]},
            "_meta": {"title": "Save"},
        },
    }


def test_links_of_version_1_are_objects() -> None:
    names = ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")
    links = [dict(zip(names, link, strict=True)) for link in LINKS]
    document = page(LOADER, TEXT, sampler(), save(3), links=links) | {"version": 1}
    assert inputs_of(document) == inputs_of(page(LOADER, TEXT, sampler(), save(3), links=LINKS))


def test_an_input_that_is_newer_than_the_file_has_its_default() -> None:
    document = page(LOADER, TEXT, sampler(values=[7, "fixed", 20, 8.0]), save(3), links=LINKS)
    assert inputs_of(document)["3"] == SAMPLER_INPUTS | {"denoise": 1.0}


def test_a_widget_of_the_page_without_a_value_is_an_empty_text() -> None:
    declared = {**OBJECT_INFO["Save"], "input": {"required": {"view": ["VIEW", {"socketless": True}]}}}
    shown = to_prompt(page(node(4, "Compare", [])), {**OBJECT_INFO, "Compare": declared}, lambda _count: 0)
    assert shown["4"]["inputs"] == {"view": ""}


def test_a_widget_that_is_an_input_keeps_its_place_and_takes_the_value_of_a_primitive() -> None:
    slots = [("model", "MODEL", 1, None), ("positive", "CONDITIONING", 2, None), ("steps", "INT", 8, "steps")]
    primitive = node(7, "PrimitiveNode", [33, "fixed"], outputs=["INT"])
    links = [*LINKS, [8, 7, 0, 3, 5, "INT"]]
    found = inputs_of(page(LOADER, TEXT, sampler(inputs=slots), save(3), primitive, links=links))
    assert found["3"] == SAMPLER_INPUTS | {"steps": 33} and "7" not in found


def test_upload_widgets_stand_between_the_required_and_the_optional_inputs() -> None:
    image = node(1, "Picture", ["x.png", "image", "blue"], outputs=["IMAGE"])
    assert inputs_of(page(image))["1"] == {"image": "x.png", "channel": "blue"}


def test_values_by_name_keep_what_a_pack_adds() -> None:
    values = {"rate": 12, "crf": 19, "choose file to upload": "image", "preview": {"hidden": False}}
    assert inputs_of(page(node(1, "Named", values)))["1"] == {"rate": 12, "kind": "a", "crf": 19}


def test_the_value_of_an_input_that_may_only_be_linked_now_is_passed_over() -> None:
    assert inputs_of(page(node(1, "Forced", [5, 6])))["1"] == {"other": 6}
    assert inputs_of(page(node(1, "Forced", [6])))["1"] == {"other": 6}


def test_lists_are_wrapped_since_a_list_is_a_link() -> None:
    assert inputs_of(page(node(1, "Points", [[0, 1]])))["1"] == {"points": {"__value__": [0, 1]}}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["width", 640, True], {"by": "width", "by.width": 640, "crop": True}),
        (["none", True], {"by": "none", "crop": True}),
        ([], {"by": "width", "by.width": 512, "crop": False}),
    ],
)
def test_a_dynamic_combo_brings_the_widgets_of_its_choice(values: list[Any], expected: Json) -> None:
    assert inputs_of(page(node(1, "Resize", values)))["1"] == expected


def test_a_muted_node_goes_with_its_links_and_a_bypassed_one_passes_its_input_on() -> None:
    model = node(4, "Model", [0.7], 4, inputs=[("model", "MODEL", 6, None)], outputs=["MODEL"])
    links = [[1, 4, 0, 3, 0, "MODEL"], *LINKS[1:], [6, 1, 0, 4, 0, "MODEL"]]
    found = inputs_of(page(LOADER, TEXT, sampler(), save(3), model, links=links))
    assert found["3"] == SAMPLER_INPUTS and "4" not in found
    muted = inputs_of(page(LOADER, TEXT, sampler(), save(3), model | {"mode": 2}, links=links))
    assert "model" not in muted["3"] and "4" not in muted


def test_reroutes_and_get_and_set_nodes_are_followed() -> None:
    nodes = [
        node(4, "Reroute", inputs=[("", "*", 6, None)], outputs=["MODEL"]),
        node(5, "SetNode", ["m"], inputs=[("MODEL", "MODEL", 7, None)], outputs=["*"]),
        node(6, "GetNode", ["m"], outputs=["MODEL"]),
        node(7, "Note", ["words"]),
        node(8, "Unknown Label"),
    ]
    links = [[1, 6, 0, 3, 0, "MODEL"], *LINKS[1:], [6, 1, 0, 4, 0, "MODEL"], [7, 4, 0, 5, 0, "MODEL"]]
    found = inputs_of(page(LOADER, TEXT, sampler(), save(3), *nodes, links=links))
    assert found["3"] == SAMPLER_INPUTS and set(found) == {"1", "2", "3", "9"}


def test_alternatives_are_chosen_and_names_of_files_filled() -> None:
    text = node(2, "Text", ["a {red|{big|blue}} cat // note\n\\{x\\}"])
    named = node(3, "Save", ["%Kind.text%_%date:yyyy-MM%_%none.x%"])
    found = inputs_of(page(text | {"properties": {"Node name for S&R": "Kind"}}, named))
    assert found["2"]["text"] == "a blue cat \n{x}"
    assert found["3"]["filename_prefix"] == "a blue cat \n{x}_%year%-%month%_%none.x%".replace("\n", "_")


def test_what_needs_a_script_or_an_unknown_class_is_refused_all_at_once() -> None:
    document = page(
        LOADER,
        node(2, "Pack", [{}, {"on": True, "lora": "x"}], inputs=[("model", "MODEL", 1, None)]),
        node(3, "Anything Everywhere", inputs=[("anything", "MODEL", 2, None)]),
        node(4, "Missing", outputs=["MODEL"]) | {"outputs": [{"name": "MODEL", "type": "MODEL", "links": [4]}]},
        links=[[1, 1, 0, 2, 0, "MODEL"], [2, 1, 0, 3, 0, "MODEL"], [3, 1, 0, 4, 0, "MODEL"]],
    )
    problems = refusal_of(document)
    assert [(problem["node_id"], problem["type"]) for problem in problems] == [
        ("2", "needs_script"),
        ("3", "needs_script"),
        ("4", "unknown_class"),
    ]
    assert all(problem["field"] == "input.workflow_json" and problem["class_type"] for problem in problems)


def test_what_cannot_be_converted_may_stand_in_a_branch_that_a_switch_leaves_out() -> None:
    def switched(switch: bool) -> Json:
        slots = [("on_false", "*", 2, None), ("on_true", "*", 1, None)]
        return page(
            LOADER,
            node(2, "Missing", [1, 2], inputs=[("model", "MODEL", 1, None)], outputs=["MODEL"]),
            node(3, "Switch", [switch], inputs=slots, outputs=["*"]),
            node(4, "Model", [0.5], inputs=[("model", "MODEL", 3, None)], outputs=["MODEL"]),
            links=[[1, 1, 0, 2, 0, "*"], [2, 2, 0, 3, 0, "*"], [3, 3, 0, 4, 0, "*"]],
        )

    found = inputs_of(switched(True))
    assert found["2"] == {"model": ["1", 0]}
    assert found["3"] == {"switch": True, "on_false": ["2", 0], "on_true": ["1", 0]}
    assert [problem["node_id"] for problem in refusal_of(switched(False))] == ["2"]


def test_a_promoted_text_has_no_alternatives() -> None:
    """A prompt in JSON, which the use of a sub-graph gives, keeps its braces."""
    inner = {
        "id": "sub", "nodes": [node(2, "Text", ["{a|b}"], inputs=[("text", "STRING", 1, "text")])], "inputs": [
            {"name": "text", "type": "STRING", "linkIds": [1]}
        ], "outputs": [],
        "links": [{"id": 1, "origin_id": -10, "origin_slot": 0, "target_id": 2, "target_slot": 0, "type": "STRING"}],
    }  # fmt: skip
    host = node(5, "sub", ["{c|d}"], inputs=[("text", "STRING", None, "text")])
    document = page(host, node(6, "Text", ["{a|b}"]), definitions={"subgraphs": [inner]})
    assert {node_id: inputs["text"] for node_id, inputs in inputs_of(document).items()} == {"5:2": "{c|d}", "6": "b"}
    host["widgets_values"] = []
    assert inputs_of(document)["5:2"]["text"] == "{a|b}"


def test_widgets_that_the_page_adds_have_the_names_that_their_class_declares() -> None:
    expected = {"choice": "b", "index": 1, "option1": "a", "option2": "b", "option3": ""}
    by_order = node(1, "Options", ["b", 1, "a", "b", ""])
    names = dict(zip(expected, expected.values(), strict=True))
    assert inputs_of(page(by_order))["1"] == expected
    assert inputs_of(page(by_order | {"widgets_values_named": names}))["1"] == expected


@pytest.mark.parametrize("named", [{}, {"widgets_values_named": {"view": "", "side": 64}}])
def test_a_3d_view_has_the_camera_of_the_file_or_the_first_one(named: Json) -> None:
    shown = node(1, "View", ["", 64]) | named
    found = inputs_of(page(shown))["1"]
    assert found["side"] == 64
    assert found["view"]["image"] == "" and found["view"]["camera_info"]["position"] == {"x": 10, "y": 10, "z": 10}
    camera = {"position": {"x": 1}}
    shown["properties"] = {"Camera Config": {"state": camera}}
    assert inputs_of(page(shown))["1"]["view"]["camera_info"] == camera


def test_a_loop_of_reroutes_is_refused() -> None:
    loop = [node(n, "Reroute", inputs=[("", "*", n, None)], outputs=["*"]) for n in (4, 5)]
    links = [[4, 5, 0, 4, 0, "*"], [5, 4, 0, 5, 0, "*"], [6, 4, 0, 9, 0, "*"]]
    (problem,) = refusal_of(page(save(6), *loop, links=links))
    assert problem["type"] == "dependency_cycle"


def test_only_lists_of_nodes_are_pages() -> None:
    assert is_page_format(page()) and not is_page_format({"nodes": {"class_type": "Save", "inputs": {}}})


@pytest.mark.parametrize("broken", [{"nodes": [1, {}], "links": [1, [], {}, [1, 2, "x", None, 5, 6]]}, {"nodes": []}])
def test_what_is_not_as_the_page_writes_it_is_passed_over(broken: Json) -> None:
    assert inputs_of(broken) == {}
