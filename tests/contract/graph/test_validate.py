"""Problems of a prompt, in ComfyUI's words."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from darkroom.contract.errors import PromptRejected
from darkroom.contract.graph.size import GraphLimits
from darkroom.contract.graph.spec import InputCheck, InputSpec, NodeRules
from darkroom.contract.graph.validate import (
    MAX_OUTPUTS_NAMED,
    MAX_PROBLEMS,
    cast_value,
    check_prompt,
    find_problems,
    is_compatible,
)
from tests.contract.graph.declared import node, rules
from tests.reference import REFERENCE

CLASSES = {
    item.class_type: item
    for item in (
        rules("Source", {"value": ("INT", {"min": 0, "max": 10})}, ("NUMBER",)),
        rules("Add", {"number": "NUMBER", "more": ("FLOAT", {})}, ("NUMBER",)),
        rules("Pick", {"name": (["a", "b"], {})}, ("NUMBER",)),
        rules("Text", {"text": "STRING", "flag": "BOOLEAN"}, ("TEXT",)),
        rules("Show", {"number": "NUMBER"}, is_output=True),
        rules(
            "Checked",
            {"value": ("INT", {"max": 3})},
            ("NUMBER",),
            check=InputCheck(lambda value: value < 5 or "too big", frozenset({"value"})),
        ),
    )
}


def problems_of(prompt: Any) -> dict[str, list[str]]:
    findings = find_problems(prompt, CLASSES.get)
    return {node_id: [item.type for item in found.problems] for node_id, found in findings.node_problems.items()}


def test_a_good_prompt_gives_its_outputs_in_order() -> None:
    prompt = {"1": node("Source", value=1), "b": node("Show", number=["1", 0]), "a": node("Show", number=["1", 0])}
    checked = check_prompt(prompt, CLASSES.get)
    assert checked.outputs == ("b", "a")
    assert checked.node_problems == {}
    assert checked.prompt is prompt


def test_a_type_name_that_stands_for_two_casts_by_what_it_equals() -> None:
    """Node packs declare inputs of several types by a name with comparisons of its own."""

    class Either(str):
        def __ne__(self, other: object) -> bool:
            return other not in ("FLOAT", "INT")

    given = InputSpec("rate", Either("FLOAT"))
    assert isinstance(cast_value(given, 8), float) and cast_value(given, 8) == 8.0
    assert cast_value(InputSpec("any", Either("*")), 8) == 8
    with pytest.raises(ValueError, match="could not convert"):
        cast_value(given, "fast")


def test_values_are_cast_in_a_copy() -> None:
    prompt = {
        "1": node("Source", value="7"),
        "2": node("Add", number=["1", 0], more=3),
        "3": node("Show", number=["2", 0]),
    }
    checked = check_prompt(prompt, CLASSES.get)
    assert checked.prompt["1"]["inputs"]["value"] == 7
    assert repr(checked.prompt["2"]["inputs"]["more"]) == "3.0"
    assert prompt["1"]["inputs"]["value"] == "7"


@pytest.mark.parametrize("error", [RuntimeError("no folder"), SystemExit(2)])
def test_a_class_that_cannot_describe_itself_is_a_problem_of_its_nodes(error: BaseException) -> None:
    def find_rules(class_type: str) -> NodeRules | None:
        if class_type == "Broken":
            raise error
        return CLASSES.get(class_type)

    prompt = {"1": node("Broken"), "2": node("Source", value=11), "3": node("Show", number=["2", 0])}
    findings = find_problems(prompt, find_rules)
    assert findings.outputs == () and list(findings.node_problems) == ["2"]
    assert [(item.type, item.details) for item in findings.problems] == [("invalid_prompt", "Node ID '#1'")]
    assert f"Broken cannot describe itself: {type(error).__name__}" in findings.problems[0].message


def test_a_wrapped_list_is_unwrapped() -> None:
    prompt = {"1": node("Text", text={"__value__": [1, 2]}, flag=0), "2": node("Show", number=["1", 0])}
    findings = find_problems(prompt, CLASSES.get)
    assert findings.node_problems["2"].problems[0].type == "return_type_mismatch"
    assert findings.prompt["1"]["inputs"] == {"text": "[1, 2]", "flag": False}


def test_every_problem_of_every_node_is_found_at_once() -> None:
    prompt = {
        "1": node("Source", value=11),
        "2": node("Add", more="abc"),
        "3": node("Pick", name="c"),
        "4": node("Show", number=["1", 0]),
        "5": node("Show", number=["2", 0]),
        "6": node("Show", number=["3", 0]),
        "7": node("Show", number=["3"]),
    }
    assert problems_of(prompt) == {
        "1": ["value_bigger_than_max"],
        "2": ["required_input_missing", "invalid_input_type"],
        "3": ["value_not_in_list"],
        "7": ["bad_linked_input"],
    }


def test_a_problem_names_the_outputs_that_need_its_node() -> None:
    prompt = {
        "1": node("Source", value=-1),
        "2": node("Pick", name="c"),
        "a": node("Show", number=["1", 0]),
        "b": node("Show", number=["2", 0]),
        "c": node("Show", number=["1", 0]),
    }
    findings = find_problems(prompt, CLASSES.get)
    assert findings.node_problems["1"].dependent_outputs == ["a", "c"]
    assert findings.node_problems["2"].dependent_outputs == ["b"]


def test_one_good_output_is_enough_and_the_others_are_reported() -> None:
    prompt = {"1": node("Source", value=1), "2": node("Show", number=["1", 0]), "3": node("Show")}
    checked = check_prompt(prompt, CLASSES.get)
    assert checked.outputs == ("2",)
    assert list(checked.node_problems) == ["3"]


def test_targets_narrow_the_outputs() -> None:
    prompt = {"1": node("Source", value=1), "2": node("Show", number=["1", 0]), "3": node("Show")}
    checked = check_prompt(prompt, CLASSES.get, ["2"])
    assert checked.outputs == ("2",) and checked.node_problems == {}


@pytest.mark.parametrize(
    ("prompt", "kind", "details"),
    [
        ({}, "prompt_no_outputs", ""),
        ({"1": node("Source", value=1)}, "prompt_no_outputs", ""),
        ({"1": {"inputs": {}}}, "invalid_prompt", "Node ID '#1'"),
        ({"1": node("Nothing")}, "invalid_prompt", "Node ID '#1'"),
        ([1], "invalid_prompt", ""),
    ],
)
def test_a_prompt_that_is_none_is_rejected_as_a_whole(prompt: Any, kind: str, details: str) -> None:
    with pytest.raises(PromptRejected) as caught:
        check_prompt(prompt, CLASSES.get)
    assert (caught.value.problem.type, caught.value.problem.details) == (kind, details)
    assert caught.value.node_problems == {}


def test_the_rejection_lists_what_is_wrong_with_the_outputs_themselves() -> None:
    with pytest.raises(PromptRejected) as caught:
        check_prompt({"1": node("Show"), "2": node("Show")}, CLASSES.get)
    assert caught.value.problem.details == "Required input is missing: number\nRequired input is missing: number"


def test_a_cycle_is_a_problem_and_no_endless_loop() -> None:
    prompt = {
        "1": node("Add", number=["2", 0], more=1.0),
        "2": node("Add", number=["1", 0], more=1.0),
        "3": node("Show", number=["1", 0]),
    }
    findings = find_problems(prompt, CLASSES.get)
    (found,) = findings.node_problems.values()
    assert found.problems[0].extra_info["exception_type"] == "graph.DependencyCycleError"
    assert found.problems[0].details == "Dependency cycle detected: 1 -> 2 -> 1"
    assert findings.outputs == ()


def test_a_chain_of_many_nodes_needs_no_recursion() -> None:
    prompt = {"0": node("Source", value=1)}
    for index in range(1, 20_000):
        prompt[str(index)] = node("Add", number=[str(index - 1), 0], more=1.0)
    prompt["out"] = node("Show", number=["19999", 0])
    assert check_prompt(prompt, CLASSES.get).outputs == ("out",)


def test_a_link_to_a_missing_output_is_reported() -> None:
    prompt = {"1": node("Source", value=1), "2": node("Show", number=["1", 4])}
    (problem,) = find_problems(prompt, CLASSES.get).node_problems["2"].problems
    assert problem.type == "exception_during_validation"
    assert problem.extra_info["exception_type"] == "IndexError"


def test_a_class_may_check_its_inputs_instead_of_their_ranges() -> None:
    prompt = {"1": node("Checked", value=4), "2": node("Show", number=["1", 0])}
    assert problems_of(prompt) == {}
    prompt["1"] = node("Checked", value=6)
    (problem,) = find_problems(prompt, CLASSES.get).node_problems["1"].problems
    assert (problem.type, problem.details) == ("custom_validation_failed", "value - too big")


@pytest.mark.parametrize(
    ("verdict", "name", "details"),
    [
        ("second: too long", "second", "second - too long"),
        ("first: 5: too much", "first", "first - 5: too much"),
        ("no such pair", "first", "first - no such pair"),
        ("third: of no input", "first", "first - third: of no input"),
        (False, "first", "first"),
    ],
)
def test_a_check_that_comes_last_complains_of_the_input_that_it_names(
    verdict: str | bool, name: str, details: str
) -> None:
    check = InputCheck(lambda **_: verdict, frozenset({"first", "second"}), comes_last=True)
    checked = rules("Checked", {"first": "INT", "second": "STRING"}, is_output=True, check=check)
    (problem,) = (
        find_problems({"1": node("Checked", first=1, second="a")}, {"Checked": checked}.get).node_problems["1"].problems
    )
    assert (problem.extra_info["input_name"], problem.details) == (name, details)
    assert problem.explanation is not None and problem.explanation.field == name


def test_a_check_that_raises_is_the_nodes_problem() -> None:
    def fail(value: int) -> bool:
        raise KeyError(value)

    broken = rules("Broken", {"value": "INT"}, is_output=True, check=InputCheck(fail, frozenset({"value"})))
    findings = find_problems({"1": node("Broken", value=1)}, {"Broken": broken}.get)
    assert findings.node_problems["1"].problems[0].type == "exception_during_validation"


@pytest.mark.parametrize(
    ("given", "wanted", "is_fine"),
    [
        ("A", "A", True),
        ("A", "B", False),
        ("A,B", "B,C", True),
        ("A", "*", True),
        ("*", "A", True),
        (["x"], ["x"], True),
        (["x"], "STRING", False),
    ],
)
def test_types_fit_when_they_have_one_in_common(given: Any, wanted: Any, is_fine: bool) -> None:
    assert is_compatible(given, wanted) is is_fine


def recorded() -> list[dict[str, Any]]:
    lines = (REFERENCE / "ws_trace" / "validation_errors.jsonl").read_text("utf-8").splitlines()
    return [item for item in map(json.loads, lines) if item["dir"] == "http" and "prompt" in item.get("request", {})]


def test_recorded_prompts_get_comfyuis_answer() -> None:
    """Files of the recording are not here, and its release has fewer samplers: these lists are as it had them."""
    info = json.loads((REFERENCE / "object_info.json").read_text("utf-8"))
    files = [
        "sd15_full.safetensors",
        "sd15_inpaint_small.safetensors",
        "sd15_small.safetensors",
        "sd15_small_b.safetensors",
    ]
    info["CheckpointLoaderSimple"]["input"]["required"]["ckpt_name"] = [files]
    sampler_names = info["KSampler"]["input"]["required"]["sampler_name"]
    sampler_names[0] = [name for name in sampler_names[0] if name not in ("exp_heun_2_x0", "exp_heun_2_x0_sde")]
    classes = {name: rules_from_info(name, item) for name, item in info.items()}
    seen = 0
    for item in recorded():
        if not isinstance(item["request"]["prompt"], dict) or "json" not in item:
            continue
        try:
            checked = check_prompt(item["request"]["prompt"], classes.get)
            answer: dict[str, Any] = {
                "node_errors": {key: value.as_json() for key, value in checked.node_problems.items()}
            }
        except PromptRejected as rejected:
            answer = rejected.as_json()
        expected = {key: value for key, value in item["json"].items() if key in ("error", "node_errors")}
        assert without_traces(json.loads(json.dumps(answer))) == without_traces(expected)
        seen += 1
    assert seen >= 13


def rules_from_info(name: str, info: dict[str, Any]) -> Any:
    def pairs(section: str) -> dict[str, Any]:
        items = info["input"].get(section, {})
        return {key: (item[0], item[1] if len(item) > 1 else {}) for key, item in items.items()}

    check = None
    if name == "LoadImage":
        check = InputCheck(lambda image: f"Invalid image file: {image}", frozenset({"image"}))
    return rules(
        name,
        pairs("required"),
        tuple(info["output"]),
        optional=pairs("optional"),
        hidden=info["input"].get("hidden"),
        is_output=info["output_node"],
        check=check,
    )


def without_traces(answer: dict[str, Any]) -> dict[str, Any]:
    """Line numbers of ComfyUI's own files are nobody's contract."""
    for found in answer["node_errors"].values():
        for problem in found["errors"]:
            problem["extra_info"].pop("traceback", None)
    return answer


def test_beside_an_unknown_class_every_other_problem_is_reported() -> None:
    prompt = {
        "1": node("Unheard", value=1),
        "2": node("Add", number=["1", 0], more="much"),
        "3": node("Show", number=["2", 0]),
        "4": node("Source", value=11),  # feeds nothing
        "5": node("Unheard", number=["4", 0]),
        "6": node("Source", value="many"),
        "7": node("Show", number=["6", 0]),
    }
    findings = find_problems(prompt, CLASSES.get)
    assert [problem.details for problem in findings.problems] == ["Node ID '#1'", "Node ID '#5'"]
    assert {node_id: found.problems[0].type for node_id, found in findings.node_problems.items()} == {
        "2": "invalid_input_type",
        "4": "value_bigger_than_max",
        "6": "invalid_input_type",
    }
    assert findings.outputs == () and findings.node_problems["2"].dependent_outputs == ["3"]


def test_an_unknown_class_rejects_as_comfyui_does_with_nothing_else() -> None:
    prompt = {"1": node("Unheard"), "2": node("Source", value=11), "3": node("Show", number=["2", 0])}
    with pytest.raises(PromptRejected) as rejected:
        check_prompt(prompt, CLASSES.get)
    assert rejected.value.problem.type == "invalid_prompt" and rejected.value.node_problems == {}


@pytest.mark.parametrize("class_type", ["Show", "Nowhere"])
def test_at_most_a_hundred_problems_are_listed_and_the_rest_counted(class_type: str) -> None:
    prompt = {str(index): node(class_type, number=["gone", 0]) for index in range(2500)}
    findings = find_problems(prompt, CLASSES.get)
    listed = [item for found in findings.node_problems.values() for item in found.problems]
    unknown = findings.problems if findings.has_unknown_class else []
    assert len(listed) + len(unknown) == MAX_PROBLEMS
    assert findings.num_unlisted == 2500 - MAX_PROBLEMS
    assert findings.outputs == ()


def test_problems_of_both_kinds_share_the_hundred() -> None:
    unknown = {f"u{index}": node("Nowhere") for index in range(60)}
    prompt = {**unknown, **{str(index): node("Show") for index in range(60)}}
    findings = find_problems(prompt, CLASSES.get)
    assert len(findings.problems) == 60 and len(findings.node_problems) == MAX_PROBLEMS - 60
    assert findings.num_unlisted == 20


def test_the_rest_is_reported_where_clients_of_comfyui_look() -> None:
    with pytest.raises(PromptRejected) as refused:
        check_prompt({str(index): node("Show") for index in range(150)}, CLASSES.get)
    told = refused.value.as_json()
    assert set(told) == {"error", "node_errors"} and len(told["node_errors"]) == MAX_PROBLEMS
    assert set(told["error"]) == {"type", "message", "details", "extra_info"}
    assert told["error"]["extra_info"] == {"unlisted_problems": 50}
    assert told["error"]["details"].endswith("... and 50 more problems")


def test_an_output_whose_problem_is_not_listed_does_not_run() -> None:
    broken = {str(index): node("Show") for index in range(MAX_PROBLEMS + 5)}
    prompt = {**broken, "1000": node("Source", value=1), "1001": node("Show", number=["1000", 0])}
    assert check_prompt(prompt, CLASSES.get).outputs == ("1001",)


FAILING = {
    "a link to an output that does not exist": {"x": node("Show", number=["1", 5])},
    "a link before the first output": {"x": node("Show", number=["1", -2])},
    "a link to an output by name": {"x": node("Show", number=["1", "NUMBER"])},
    "a link to an output node without outputs": {"x": node("Show", number=["2", 0])},
    "a link to a node that does not exist": {"x": node("Show", number=["9", 0])},
    "a link under the number of a node": {"x": node("Show", number=[1, 0])},
    "a list that is no link": {"x": node("Show", number=["1", 0, 0])},
    "a link that nobody takes": {"x": node("Show", number=["1", 0], other=["1", 0])},
    "a link of another type": {"3": node("Text", text="a", flag=True), "x": node("Show", number=["3", 0])},
    "an input that is missing": {"x": node("Show")},
    "a value out of range before it": {"3": node("Source", value=11), "x": node("Show", number=["3", 0])},
    "the node's own check before it": {"3": node("Checked", value=7), "x": node("Show", number=["3", 0])},
    "a problem two nodes before it": {
        "3": node("Add", number=["1", 3], more=0.5),
        "4": node("Add", number=["3", 0], more=0.5),
        "x": node("Show", number=["4", 0]),
    },
    "a cycle before it": {
        "3": node("Add", number=["4", 0], more=0.5),
        "4": node("Add", number=["3", 0], more=0.5),
        "x": node("Show", number=["4", 0]),
    },
    "more problems than are listed": {f"x{index}": node("Show") for index in range(MAX_PROBLEMS + 50)},
    "more outputs than a problem names": {
        "3": node("Source", value=11),
        **{f"x{index}": node("Show", number=["3", 0]) for index in range(MAX_OUTPUTS_NAMED + 50)},
    },
}


@pytest.mark.parametrize("cause", FAILING)
def test_every_output_that_cannot_run_is_reported_beside_one_that_can(cause: str) -> None:
    prompt = {"1": node("Source", value=1), "2": node("Show", number=["1", 0]), **FAILING[cause]}
    checked = check_prompt(prompt, CLASSES.get)
    assert checked.outputs == ("2",)
    named = {output for entry in checked.node_problems.values() for output in entry.dependent_outputs}
    assert named | checked.node_problems.keys() >= {node_id for node_id in prompt if node_id.startswith("x")}
    assert all(entry.problems for entry in checked.node_problems.values())


def test_a_long_value_is_cut_in_what_is_said_of_it() -> None:
    prompt = {"1": node("Source", value="9" * 1_000_000), "2": node("Show", number=["1", 0])}
    (problem,) = find_problems(prompt, CLASSES.get).node_problems["1"].problems
    assert len(json.dumps(problem.as_json())) < 20_000


def test_cycles_through_every_node_are_named_briefly() -> None:
    links = {str(index): node("Both", number=[str(index + 1), 0], more=["0", 0]) for index in range(3000)}
    classes = {**CLASSES, "Both": rules("Both", {"number": "NUMBER", "more": "NUMBER"}, ("NUMBER",))}
    prompt = {**links, "3000": node("Both", number=["0", 0], more=["0", 0]), "o": node("Show", number=["0", 0])}
    findings = find_problems(prompt, classes.get)
    assert findings.outputs == () and len(findings.node_problems["0"].problems) == MAX_PROBLEMS
    assert len(json.dumps([item.as_json() for item in findings.node_problems["0"].problems])) < 200_000


def test_an_excused_problem_is_none_however_many_there_are() -> None:
    sources = {str(index): node("Pick", name="later") for index in range(300)}
    prompt = {**sources, **{f"o{index}": node("Show", number=[str(index), 0]) for index in range(300)}}
    findings = find_problems(prompt, CLASSES.get, excuses=lambda problem, inputs: inputs["name"] == "later")
    assert len(findings.outputs) == 300 and not findings.problems and not findings.node_problems


def test_a_prompt_over_a_limit_is_refused_before_its_classes_are_asked_for() -> None:
    def find_rules(class_type: str) -> NodeRules | None:
        raise AssertionError(class_type)

    with pytest.raises(PromptRejected) as refused:
        find_problems({str(index): {} for index in range(11)}, find_rules, limits=GraphLimits(max_nodes=10))
    assert refused.value.problem.type == "prompt_too_large"


def test_a_link_under_an_unknown_name_is_reported_with_the_names_there_are() -> None:
    prompt = {"1": node("Source", value=1), "2": node("Show", number=["1", 0], image=["1", 0])}
    [problem] = find_problems(prompt, CLASSES.get).node_problems["2"].problems
    assert problem.type == "unknown_input" and problem.extra_info["input_name"] == "image"
    assert problem.details == "image: Show has no such input; expected one of: number"


def test_a_value_under_an_unknown_name_is_passed_over() -> None:
    assert not problems_of({"1": node("Source", value=1), "2": node("Show", number=["1", 0], image="x")})


def test_what_an_undeclared_link_leads_to_is_checked_where_a_class_takes_it() -> None:
    classes = {**CLASSES, "Open": replace(CLASSES["Show"], class_type="Open", undeclared=None)}
    prompt = {
        "1": node("Source", value=1),
        "2": node("Source", value=99),
        "3": node("Open", number=["1", 0], a=["2", 0], b=["nobody", 0], c=["1", 7], d=["1", 0]),
        "4": node("Open", number=["1", 0], e=["4", 0]),
    }
    found = find_problems(prompt, classes.get).node_problems
    assert [item.type for item in found["2"].problems] == ["value_bigger_than_max"]
    assert len(found["3"].problems) == 2
    assert "4" in found
