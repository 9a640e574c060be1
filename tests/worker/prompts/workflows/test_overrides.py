"""Overrides of a workflow, by each way of naming an input."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest

from darkroom.worker.errors import RequestRejected
from darkroom.worker.prompts.workflows.app_mode import read_app_mode
from darkroom.worker.prompts.workflows.overrides import MAX_TARGET_LENGTH, override
from darkroom.worker.storage.stored_workflow import Place
from tests.worker.prompts.workflows.pages import OBJECT_INFO, node, page

PROMPT: dict[str, Any] = {
    "3": {"class_type": "Sampler", "inputs": {"seed": 1, "steps": 20, "model": ["4", 0]}, "_meta": {"title": "First"}},
    "5": {"class_type": "Sampler", "inputs": {"seed": ["9", 0], "steps": 8}, "_meta": {"title": "v1.5 pass"}},
    "6": {"class_type": "Text", "inputs": {"text": "a cat", "clip": ["4", 1]}, "_meta": {"title": "First"}},
    "9": {"class_type": "Seeds", "inputs": {"seed": 7, "by.width": 64}},
}


def inputs_after(**overrides: Any) -> dict[str, Any]:
    found = override(PROMPT, overrides, OBJECT_INFO)
    return {place.target: found.prompt[place.node_id]["inputs"][place.input_name] for place in found.fields}  # type: ignore[index]


@pytest.mark.parametrize(
    ("target", "changed"),
    [
        ("6.text", {"6.text"}),
        ("First.text", {"6.text"}),
        ("First.seed", {"3.seed"}),
        ("v1.5 pass.steps", {"5.steps"}),
        ("Sampler.steps", {"3.steps", "5.steps"}),
        ("#seed", {"3.seed", "9.seed"}),  # not the linked one
        ("5.seed", {"5.seed"}),  # named itself, a link gives way
        ("9.by.width", {"9.by.width"}),
        ("3.denoise", {"3.denoise"}),  # left out, and declared
    ],
)
def test_an_input_is_named_by_id_title_class_or_name(target: str, changed: set[str]) -> None:
    assert inputs_after(**{target: 99}) == dict.fromkeys(changed, 99)


def test_the_more_specific_override_applies_in_any_order() -> None:
    expected = {"3.steps": 3, "5.steps": 2}
    assert inputs_after(**{"3.steps": 3, "Sampler.steps": 2, "#steps": 1}) == expected
    assert inputs_after(**{"#steps": 1, "Sampler.steps": 2, "3.steps": 3}) == expected


def test_null_leaves_the_value_and_the_workflow_itself_stays() -> None:
    before = repr(PROMPT)
    assert inputs_after(**{"6.text": None, "#seed": 2}) == {"3.seed": 2, "9.seed": 2}
    assert repr(PROMPT) == before


@pytest.mark.parametrize(
    ("target", "nearest"),
    [
        ("6.txt", "6.text"),
        ("#sed", "#seed"),
        ("Sampler.stps", "Sampler.steps"),
        ("Frist.text", "First.text"),
        ("text", "#text"),
        ("", "#seed"),
        (".", "#seed"),
    ],
)
def test_an_unknown_target_is_refused_with_the_nearest_names(target: str, nearest: str) -> None:
    with pytest.raises(RequestRejected) as raised:
        override(PROMPT, {target: 1, "6.text": "x"}, OBJECT_INFO)
    (problem,) = raised.value.problems
    assert problem.field == f"input.overrides.{target}" and problem.type == "unknown_input"
    assert nearest in problem.allowed


def test_very_many_wrong_targets_cost_little() -> None:
    prompt = {str(n): {"class_type": "Text", "inputs": {f"text{n}": "x"}} for n in range(5000)}
    wrong = {f"{'.' * 5000}{n}": 1 for n in range(2000)} | {f"txt{n}": 1 for n in range(2000)}
    began = time.process_time()
    with pytest.raises(RequestRejected) as raised:
        override(prompt, wrong, {})
    assert raised.value.num_unlisted > 3000
    assert time.process_time() - began < 30  # a quadratic search would take minutes


def test_a_long_title_is_not_written_for_each_input_of_its_node() -> None:
    inputs = {f"input{number}": 1 for number in range(500)}
    prompt = {"1": {"class_type": "Sampler", "_meta": {"title": "t" * 100_000}, "inputs": inputs}}
    tracemalloc.start()
    with pytest.raises(RequestRejected) as raised:
        override(prompt, {"1.inputt3": 1, "nowhere.inputt3": 1}, {})
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 10_000_000  # fifty megabytes with the title before each
    assert "1.input3" in raised.value.problems[0].allowed
    assert all(len(name) <= MAX_TARGET_LENGTH for problem in raised.value.problems for name in problem.allowed)


def test_inputs_of_the_pages_app_mode_are_named_without_a_node() -> None:
    document = page(node(3, "Sampler", [1, "fixed", 20, 8.0, 1.0]), node(5, "Sampler", [2, "fixed", 9, 7.0, 1.0]))
    document["extra"] = {
        "linearData": {"inputs": [[5, "seed"], [3, "steps", {"height": 9}], [8, "gone"]], "outputs": [5, 8]}
    }
    found = read_app_mode(document, OBJECT_INFO)
    assert found.inputs == {"seed": (Place("5", "seed"),), "steps": (Place("3", "steps"),)}
    assert found.outputs == ("5",)
    assert set(override(PROMPT, {"#seed": 4}, OBJECT_INFO, found.inputs).fields) == {Place("5", "seed")}


def test_a_promoted_widget_of_a_sub_graph_stands_for_the_inputs_within() -> None:
    inner = {
        "id": "sub",
        "inputs": [{"name": "words", "type": "STRING"}],
        "nodes": [
            node(1, "Text", ["a"], inputs=[("text", "STRING", 10, "text")]),
            node(2, "Text", ["b"], inputs=[("text", "STRING", 11, "text")]),
            node(4, "Sampler", [1, "fixed", 20, 8.0, 1.0]),
        ],
        "links": [
            {"id": 10, "origin_id": -10, "origin_slot": 0, "target_id": 1, "target_slot": 0},
            {"id": 11, "origin_id": -10, "origin_slot": 0, "target_id": 2, "target_slot": 0},
        ],
    }
    host = node(7, "sub", properties={"proxyWidgets": [["4", "cfg"]]}, inputs=[("words", "STRING", None, "words")])
    document = page(host)
    document["definitions"] = {"subgraphs": [inner]}
    document["extra"] = {"linearData": {"inputs": [[7, "words"], ["7", "cfg"]], "outputs": []}}
    found = read_app_mode(document, OBJECT_INFO)
    assert found.inputs == {
        "words": (Place("7:1", "text"), Place("7:2", "text")),
        "cfg": (Place("7:4", "cfg"),),
    }
