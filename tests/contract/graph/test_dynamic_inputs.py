"""Inputs that depend on the prompt: which there are, what is wrong with them, how a node receives them."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.contract.errors import PromptRejected
from darkroom.contract.graph.dynamic_inputs import expanded, nested
from darkroom.contract.graph.spec import NodeRules
from darkroom.contract.graph.validate import check_prompt
from tests.contract.graph.declared import node, rules

SIDE = ["INT", {"default": 512, "min": 1, "max": 100}]
COMBO = (
    "COMFY_DYNAMICCOMBO_V3",
    {
        "options": [
            {"key": "width", "inputs": {"required": {"width": SIDE}}},
            {"key": "like", "inputs": {"required": {"like": ["IMAGE", {}]}, "optional": {"width": SIDE}}},
            {
                "key": "by",
                "inputs": {
                    "required": {
                        "unit": [
                            "COMFY_DYNAMICCOMBO_V3",
                            {"options": [{"key": "px", "inputs": {"required": {"count": SIDE}}}]},
                        ]
                    }
                },
            },
        ]
    },
)
GROUP = (
    "COMFY_AUTOGROW_V3",
    {"template": {"input": {"required": {"image": ["IMAGE", {}]}}, "prefix": "image", "min": 1, "max": 3}},
)
NAMED = (
    "COMFY_AUTOGROW_V3",
    {"template": {"input": {"optional": {"value": ["FLOAT,INT", {}]}}, "names": ["a", "b"], "min": 1}},
)
CLASSES: dict[str, NodeRules] = {
    "Picture": rules("Picture", {}, ("IMAGE",)),
    "Number": rules("Number", {}, ("INT",)),
    "Resize": rules("Resize", {"way": COMBO}, is_output=True),
    "Batch": rules("Batch", {"images": GROUP}, is_output=True),
    "Sum": rules("Sum", {"values": NAMED}, is_output=True),
}


def problems(inputs: dict[str, Any], class_type: str = "Resize") -> list[tuple[str, str]]:
    """Return the types of the problems of one node, with the input that each is about."""
    prompt = {"1": node("Picture"), "2": node("Number"), "9": {"class_type": class_type, "inputs": inputs}}
    try:
        check_prompt(prompt, CLASSES.get)
    except PromptRejected as error:
        found = error.node_problems["9"].problems
        return [(problem.type, str(problem.extra_info.get("input_name"))) for problem in found]
    return []


@pytest.mark.parametrize(
    ("class_type", "inputs"),
    [
        ("Resize", {"way": "width", "way.width": 64}),
        ("Resize", {"way": "like", "way.like": ["1", 0]}),
        ("Resize", {"way": "like", "way.like": ["1", 0], "way.width": 9}),
        ("Resize", {"way": "by", "way.unit": "px", "way.unit.count": ["2", 0]}),
        ("Resize", {"way": "by"}),
        ("Batch", {"images.image0": ["1", 0], "images.image2": ["1", 0]}),
        ("Sum", {}),
        ("Sum", {"values.b": ["2", 0]}),
    ],
)
def test_a_prompt_may_give_the_inputs_that_its_choices_bring(class_type: str, inputs: dict[str, Any]) -> None:
    assert problems(inputs, class_type) == []


@pytest.mark.parametrize(
    ("class_type", "inputs", "expected"),
    [
        ("Resize", {}, ("required_input_missing", "way")),
        ("Resize", {"way": "height"}, ("value_not_in_list", "way")),
        ("Resize", {"way": "height", "way.height": ["2", 0]}, ("value_not_in_list", "way")),
        ("Resize", {"way": "width"}, ("required_input_missing", "way.width")),
        ("Resize", {"way": "width", "way.width": 101}, ("value_bigger_than_max", "way.width")),
        ("Resize", {"way": "width", "way.width": "wide"}, ("invalid_input_type", "way.width")),
        ("Resize", {"way": "like", "way.like": ["2", 0]}, ("return_type_mismatch", "way.like")),
        ("Resize", {"way": "by", "way.unit": "px"}, ("required_input_missing", "way.unit.count")),
        ("Batch", {}, ("required_input_missing", "images.image0")),
        ("Batch", {"images.image0": ["1", 0], "images.image3": ["1", 0]}, ("unknown_input", "images.image3")),
        ("Sum", {"values.a": ["1", 0]}, ("return_type_mismatch", "values.a")),
    ],
)
def test_what_is_wrong_with_one_is_reported_under_its_dotted_name(
    class_type: str, inputs: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert problems(inputs, class_type) == [expected]


def test_a_node_receives_them_nested() -> None:
    inputs = {"way": "by", "way.unit": "px", "way.unit.count": 3}
    given = nested(expanded(CLASSES["Resize"], inputs), dict(inputs))
    assert given == {"way": {"way": "by", "unit": {"unit": "px", "count": 3}}}


def test_an_input_that_is_left_out_is_none() -> None:
    inputs = {"way": "like", "way.like": "an image"}
    given = nested(expanded(CLASSES["Resize"], inputs), dict(inputs))
    assert given == {"way": {"way": "like", "like": "an image", "width": None}}


def test_a_group_has_what_the_prompt_gives_in_the_declared_order() -> None:
    inputs = {"images.image2": "c", "images.image0": "a"}
    given = nested(expanded(CLASSES["Batch"], inputs), dict(inputs))
    assert list(given["images"].items()) == [("image0", "a"), ("image2", "c")]


def test_a_group_of_nothing_is_empty() -> None:
    assert nested(expanded(CLASSES["Sum"], {}), {}) == {"values": {}}


def test_a_class_without_them_keeps_its_rules() -> None:
    assert expanded(CLASSES["Picture"], {"way": 1}) is CLASSES["Picture"]
