"""Branches that switches leave out are no part of what is checked, fetched, priced and run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from darkroom.contract.graph.facts import FACTS_KEY, NO_FACTS, NodeFacts
from darkroom.contract.graph.prompt import parse_prompt
from darkroom.contract.graph.prompt_graph import ModelFile, PromptGraph
from darkroom.contract.graph.spec import NodeRules
from darkroom.contract.graph.switches import LeftOut, find_left_out, inputs_of, left_out_of, without_left_out
from darkroom.contract.graph.validate import find_problems
from darkroom.contract.graph.work import PromptWork
from tests.contract.graph.declared import node, rules

SWITCH = NodeFacts(chosen_by="switch", alternatives={"true": "on_true", "false": "on_false"})
FACTS = {
    "Switch": SWITCH,
    "Flag": NodeFacts(gives="value"),
    "Start": NodeFacts(loop="start"),
    "End": NodeFacts(loop="end"),
}
LAZY = ("*", {"lazy": True})
DECLARED = (
    rules("Load", {"name": (["here"], {})}, ("MODEL",)),
    rules("Flag", {"value": "BOOLEAN"}, ("BOOLEAN",)),
    rules("Random", {}, ("BOOLEAN",)),
    rules("Switch", {"switch": "BOOLEAN", "on_false": LAZY, "on_true": LAZY}, ("*",)),
    rules("Show", {"model": "MODEL"}, ("MODEL",), is_output=True),
    rules("Start", {"first": "*"}, ("*",)),
    rules("End", {"value": "*"}, ("*",)),
)
CLASSES: dict[str, NodeRules] = {
    item.class_type: replace(item, facts=FACTS.get(item.class_type, NO_FACTS)) for item in DECLARED
}


def switched(switch: object, **more: dict[str, Any]) -> dict[str, Any]:
    """Return a prompt that shows one of two models: `off` if `switch` is False, else `on`."""
    return {
        "off": node("Load", name="here"),
        "on": node("Load", name="here"),
        "switch": node("Switch", switch=switch, on_false=["off", 0], on_true=["on", 0]),
        "show": node("Show", model=["switch", 0]),
        **more,
    }


def left_out(prompt: dict[str, Any]) -> LeftOut:
    return left_out_of(parse_prompt(prompt), CLASSES)


def problems_of(prompt: dict[str, Any]) -> dict[str, list[str]]:
    found = find_problems(prompt, CLASSES.get)
    listed = {node_id: [item.type for item in entry.problems] for node_id, entry in found.node_problems.items()}
    return listed | {"": [item.type for item in found.problems]} if found.has_unknown_class else listed


@pytest.mark.parametrize(
    ("switch", "others", "expected"),
    [
        (True, {}, {"off"}),
        (False, {}, {"on"}),
        ("false", {}, {"off"}),  # a text that is not empty, as ComfyUI converts it
        (0, {}, {"on"}),
        (["flag", 0], {"flag": node("Flag", value=False)}, {"on"}),
        (["flag", 0], {"flag": node("Flag", value=["other", 0]), "other": node("Flag", value=True)}, {"off"}),
        (["flag", 0], {"flag": node("Random")}, set()),
        (["flag", 0], {"flag": node("Flag", value=["flag", 0])}, set()),
        (["none", 0], {}, set()),
        (
            ["which", 0],
            {"which": node("Switch", switch=True, on_true=["flag", 0], on_false=["random", 0]),
             "flag": node("Flag", value=False), "random": node("Random")},
            {"on", "random"},
        ),
    ],
)  # fmt: skip
def test_what_only_the_other_branch_needs_is_left_out(
    switch: object, others: dict[str, Any], expected: set[str]
) -> None:
    assert left_out(switched(switch, **others)).nodes == expected


def test_a_node_that_something_else_takes_is_not_left_out() -> None:
    assert left_out(switched(True, also=node("Show", model=["off", 0]))).nodes == set()
    saved = switched(True)
    saved["off"] = node("Show", model=["before", 0])  # an output node runs wherever its result goes
    assert left_out({**saved, "before": node("Load", name="here")}).nodes == set()


def test_a_switch_whose_branch_is_not_given_leaves_nothing_out() -> None:
    prompt = switched(True)
    del prompt["switch"]["inputs"]["on_true"]
    assert left_out(prompt).links == set()
    assert problems_of(prompt) == {"switch": ["required_input_missing"]}


def test_the_branch_that_is_off_need_not_be_given() -> None:
    prompt = switched(True)
    del prompt["switch"]["inputs"]["on_false"]
    assert problems_of(prompt) == {}
    prompt["switch"]["inputs"]["switch"] = False
    assert problems_of(prompt) == {"switch": ["required_input_missing"]}


def test_nothing_of_a_branch_that_is_off_is_a_reason_to_refuse() -> None:
    prompt = switched(True)
    prompt["off"] = node("Load", name="missing")
    assert problems_of(prompt) == {}
    assert problems_of({**prompt, "off": node("NoSuchClass", model=["before", 0]), "before": node("Nor")}) == {}
    prompt["switch"]["inputs"]["switch"] = False
    assert problems_of(prompt) == {"off": ["value_not_in_list"]}
    assert problems_of({**prompt, "off": node("NoSuchClass")})[""] == ["invalid_prompt"]


def test_a_link_that_no_switch_follows_leaves_no_loop() -> None:
    loop = {"start": node("Start", first=["on", 0]), "end": node("End", value=["start", 0])}
    prompt = switched(True, **loop, other=node("Show", model=["end", 0]))
    prompt["switch"]["inputs"]["on_false"] = ["start", 0]
    assert problems_of(prompt) == {}
    prompt["switch"]["inputs"]["switch"] = False
    assert problems_of(prompt) == {"start": ["custom_validation_failed"]}


def test_an_unknown_class_that_might_run_is_refused() -> None:
    end = {"end": node("NoSuchClass", model=["off", 0])}  # whether it is an output node is not known
    assert problems_of(switched(True, **end))[""] == ["invalid_prompt"]


def test_what_runs_has_neither_the_nodes_nor_the_links() -> None:
    prompt = switched(True)
    kept = without_left_out(prompt, left_out(prompt))
    assert kept.keys() == {"on", "switch", "show"}
    assert kept["switch"]["inputs"] == {"switch": True, "on_true": ["on", 0]}
    assert "off" in prompt and "on_false" in prompt["switch"]["inputs"]


@given(st.lists(st.tuples(st.sampled_from(["Flag", "Switch", "Load"]), *[st.integers(0, 9)] * 3), max_size=10))
def test_any_graph_ends_and_leaves_outputs_alone(drawn: list[tuple[str, int, int, int]]) -> None:
    prompt = {
        str(number): node(kind, value=[str(a), 0], switch=[str(b), 0] if b < 8 else True, on_true=[str(c), 0],
                          on_false=[str(a), 0])
        for number, (kind, a, b, c) in enumerate(drawn)
    }  # fmt: skip
    found = find_left_out(inputs_of(prompt), lambda node_id: FACTS.get(prompt[node_id]["class_type"], NO_FACTS), {"0"})
    assert "0" not in found.nodes and found.nodes <= prompt.keys()


def priced(*, has_facts: bool) -> PromptWork:
    """Return the work of a prompt with a sampler in either branch, and switched numbers of steps."""
    declared = {"ComfySwitchNode": SWITCH, "PrimitiveBoolean": FACTS["Flag"]} if has_facts else {}
    facts = {name: {FACTS_KEY: item.as_json()} for name, item in declared.items()}
    size, images = node("EmptyLatentImage", width=64, height=64), {"output": ["LATENT"], "output_node": False}
    steps = node("ComfySwitchNode", switch=["flag", 0], on_true=4, on_false=["many", 0])
    prompt = {
        "flag": node("PrimitiveBoolean", value=True), "many": node("PrimitiveInt", value=50), "steps": steps,
        "fast": node("UNETLoader", unet_name="fast.sft"), "slow": node("UNETLoader", unet_name="slow.sft"),
        "model": node("ComfySwitchNode", switch=["flag", 0], on_true=["fast", 0], on_false=["slow", 0]),
        "size": size, "other": node("EmptyLatentImage", width=4096, height=4096),
        "first": node("KSampler", model=["model", 0], latent_image=["size", 0], steps=["steps", 0]),
        "never": node("KSampler", model=["slow", 0], latent_image=["other", 0], steps=99),
        "end": node("ComfySwitchNode", switch=["flag", 0], on_true=["first", 0], on_false=["never", 0]),
        "save": node("SaveLatent", samples=["end", 0]),
    }  # fmt: skip
    info = {
        "ComfySwitchNode": {"output": ["*"], **facts.get("ComfySwitchNode", {})},
        "PrimitiveBoolean": {"output": ["BOOLEAN"], **facts.get("PrimitiveBoolean", {})},
        "KSampler": images, "EmptyLatentImage": images, "UNETLoader": {"output": ["MODEL"]},
        "SaveLatent": {"output": [], "output_node": True},
    }  # fmt: skip
    return PromptWork(prompt, info)


def test_a_branch_that_is_off_has_no_price_and_no_size() -> None:
    work = priced(has_facts=True)
    assert [(item.node_id, item.steps) for item in work.samplings] == [("first", 4.0)]
    assert "other" not in work.sizes and "size" in work.sizes
    assert work.model_of("first", ()) == ModelFile("diffusion_models", "fast.sft")
    assert work.graph.running_part().keys() == {"flag", "steps", "fast", "model", "size", "first", "end", "save"}
    assert work.graph.possible_part().keys() == work.graph.running_part().keys()


def test_an_engine_that_reports_no_facts_checks_both_branches_as_comfyui_does() -> None:
    graph: PromptGraph = priced(has_facts=False).graph
    assert graph.left_out == set()
    assert graph.possible_part() == graph.prompt
