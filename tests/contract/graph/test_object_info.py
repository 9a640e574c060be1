"""Declarations read back from `/object_info`, in every notation that ComfyUI has used."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.contract.graph.explain import explain_prompt
from darkroom.contract.graph.object_info import read_input, read_spec, rules_in
from tests.contract.graph.declared import node

SAVE = {"input": {"required": {"any": ["*"]}}, "output_node": True, "python_module": "nodes"}


def kinds(prompt: dict[str, Any], **classes: Any) -> list[str | None]:
    return [problem.type for problem in explain_prompt(prompt, rules_in({"Save": SAVE, **classes})).problems]


def test_a_class_is_read_whole() -> None:
    spec = read_spec(
        "Load",
        {
            "input": {
                "required": {"name": [["a", "b"], {"default": "a"}], "size": ["INT", {"min": 1, "lazy": True}]},
                "optional": {"mask": ["MASK"]},
                "hidden": {"id": "UNIQUE_ID", "prompt": ["PROMPT"]},
            },
            "output": ["IMAGE", ["a", "b"]],
            "output_is_list": [True],
            "output_name": ["picture"],
            "output_node": True,
            "category": "c",
            "display_name": "d",
            "python_module": "custom_nodes.x",
        },
    )
    assert [(item.name, item.section, item.type) for item in spec.inputs] == [
        ("name", "required", ["a", "b"]),
        ("size", "required", "INT"),
        ("mask", "optional", "MASK"),
        ("id", "hidden", "UNIQUE_ID"),
        ("prompt", "hidden", "PROMPT"),
    ]
    assert [(item.type, item.name, item.is_list) for item in spec.outputs] == [
        ("IMAGE", "picture", True),
        (["a", "b"], "['a', 'b']", False),
    ]
    assert (spec.is_output, spec.category, spec.display_name, spec.python_module) == (True, "c", "d", "custom_nodes.x")


@pytest.mark.parametrize("declared", [{}, {"input": None, "output": None}, {"input": {"required": {"x": {}}}}])
def test_what_is_not_as_comfyui_writes_it_is_passed_over(declared: dict[str, Any]) -> None:
    assert read_spec("Odd", declared).class_type == "Odd"


def test_choices_are_read_in_both_notations() -> None:
    assert read_input("x", [["a"]]).allowed() == ["a"]
    assert read_input("x", ["COMBO", {"options": ["a"]}]).allowed() == ["a"]
    assert read_input("x", ["COMBO", {"options": 5}]).choices is None
    assert read_input("x", ["INT", {"min": 1, "max": 3, "step": 2, "default": 1}]).allowed() == {
        "type": "INT",
        "min": 1,
        "max": 3,
        "step": 2,
    }


@pytest.mark.parametrize(("value", "is_good"), [(["a", "b"], True), ([], True), (["a", "c"], False), ("b", True)])
def test_of_several_choices_each_must_be_one(value: Any, is_good: bool) -> None:
    pick = {"input": {"required": {"x": ["COMBO", {"options": ["a", "b"], "multiselect": True}]}}, "output_node": True}
    given = {"__value__": value} if isinstance(value, list) else value
    assert kinds({"1": node("Pick", x=given)}, Pick=pick) == ([] if is_good else ["value_not_in_list"])


def test_inputs_that_a_declaration_makes_are_left_to_the_engine() -> None:
    grows = {
        "input": {"required": {"images": ["COMFY_AUTOGROW_V3", {"template": {}}]}},
        "output": ["COMFY_MATCHTYPE_V3"],
        "output_node": True,
        "python_module": "comfy_extras.nodes_x",
    }
    prompt: dict[str, Any] = {"1": node("Grow", **{"images.image0": ["2", 0]}), "2": node("Save", any=["1", 0])}
    prompt["2"]["inputs"] = {"any": 1}
    assert kinds(prompt, Grow=grows) == ["bad_linked_input"]  # Save gives nothing
    prompt = {"1": node("Grow"), "2": node("Save", any=["1", 0])}
    assert kinds(prompt, Grow=grows, Save={**SAVE, "input": {"required": {"any": ["IMAGE"]}}}) == []


@pytest.mark.parametrize(("module", "found"), [("nodes", ["unknown_input"]), ("custom_nodes.x", [])])
def test_a_packs_class_may_take_links_that_it_does_not_declare(module: str, found: list[str]) -> None:
    source = {"input": {}, "output": ["INT"]}
    prompt = {"1": node("Source"), "2": node("Save", any=1, more=["1", 0])}
    assert kinds(prompt, Source=source, Save={**SAVE, "python_module": module}) == found


def test_a_circle_is_found_without_the_engine() -> None:
    both = {"input": {"required": {"any": ["*"]}}, "output": ["*"], "output_node": True}
    (problem,) = explain_prompt(
        {"1": node("Both", any=["2", 0]), "2": node("Both", any=["1", 0])}, rules_in({"Both": both})
    ).problems
    assert (problem.type, problem.message) == ("dependency_cycle", "Dependency cycle detected: 1 -> 2 -> 1")


def test_a_prompt_that_is_none_is_explained() -> None:
    prompts: tuple[Any, ...] = ([], "x", {"1": 3}, {"1": {"inputs": {}}})
    for prompt in prompts:
        (problem,) = explain_prompt(prompt, rules_in({})).problems
        assert problem.type == "invalid_prompt" and problem.message


def test_choices_that_the_page_s_user_writes_are_open_for_every_engine() -> None:
    declared = {"CustomCombo": {"input": {"required": {"choice": ["COMBO", {"options": []}]}}, "output": ["STRING"]}}
    rules = rules_in(declared)("CustomCombo")
    assert rules is not None and rules.inputs["choice"].accepts("Music")
    other = rules_in({"Other": declared["CustomCombo"]})("Other")
    assert other is not None and not other.inputs["choice"].accepts("Music")
