"""Complaints of all nodes about their inputs: about the one that is wrong, with its name said once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from darkroom.contract.errors import Problem
from darkroom.contract.graph.spec import GROWING, InputSpec, NodeRules, NodeSpec, OutputSpec, rules_of
from darkroom.contract.graph.validate import find_problems
from darkroom.engine.nodes.base import NodeClass
from darkroom.engine.nodes.built_in import built_in_nodes
from tests.contract.graph.declared import node
from tests.engine.nodes.test_object_info import Environment

SOURCE = rules_of(NodeSpec("Source", (), (OutputSpec("*", "*"),), "Source", "test"))
GOOD, BAD = "good.safetensors", "bad.safetensors"
WIDGETS: Mapping[str, Any] = {"INT": 1, "FLOAT": 1.0, "BOOLEAN": False, "STRING": "text", "COLOR": "#ffffff"}
WRONG = (BAD, "{", "no: such", "9999", "a" * 2_000_000, "(" * 5000 + ")" * 5000, {"x": -1}, {"image": 1}, [[1], "a"], 7)


class OneBadFile(Environment):
    """An environment with two model files of each kind, one of them damaged, and no files of inputs."""

    def model_files(self, kind: str) -> list[str]:
        return [GOOD, BAD]

    def model_problem(self, kind: str, name: str) -> str | None:  # type: ignore[override]
        return "cut short" if name == BAD else None


ENVIRONMENT = OneBadFile()
CHECKED = {
    item.class_type: item for item in built_in_nodes() if (own := item.rules(ENVIRONMENT)) and own.check is not None
}
COMPLAINING = {
    "CheckpointLoaderSimple", "ColorToRGBInt", "ContextWindowsManual", "CurveEditor", "DualCLIPLoader", "ImageCropV2",
    "Load3D", "LoadAudio", "LoadImage", "LoadVideo", "TripleCLIPLoaderGGUF", "CLIPTextEncode",
    "Painter", "RenderMesh", "RenderSplat", "SelectModelDevice", "StringFormat", "TextOverlay", "WebcamCapture",
}  # fmt: skip


def good_value(spec: InputSpec) -> object:
    if spec.choices:
        return GOOD if GOOD in spec.choices else spec.choices[0]
    if spec.options.get("forceInput"):
        return ["source", 0]
    return spec.options.get("default", WIDGETS.get(str(spec.type), ["source", 0]))


def complaints_of(item: NodeClass) -> Iterator[tuple[str, Problem]]:
    """Yield the complaints of a node about each of its inputs in turn, with the name of that input."""
    rules = replace(item.rules(ENVIRONMENT), is_output=True)
    assert rules.check is not None
    good = {spec.name: good_value(spec) for spec in rules.declared if spec.type != GROWING}
    for name in sorted(rules.check.names & rules.declared_names):
        for value in WRONG:
            prompt = {"source": node("Source"), "1": node(rules.class_type, **good | {name: value})}
            known: dict[str, NodeRules] = {"Source": SOURCE, rules.class_type: rules}
            found = find_problems(prompt, known.get).node_problems
            for problem in found["1"].problems if "1" in found else ():
                if problem.type == "custom_validation_failed":
                    yield name, problem


@pytest.mark.parametrize("class_type", sorted(CHECKED))
def test_a_complaint_says_the_name_of_its_input_once(class_type: str) -> None:
    complaints = list(complaints_of(CHECKED[class_type]))
    for name, problem in complaints:
        assert problem.extra_info["input_name"] == name
        assert problem.details.startswith(f"{name} - ") and not problem.details.startswith(f"{name} - {name}: ")
        assert len(problem.details) < 3000
        assert problem.explanation is not None and problem.explanation.field == name
    assert complaints or class_type not in COMPLAINING
