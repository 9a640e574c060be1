"""Every built-in node declares what ComfyUI's node of that name declares.

Left out on both sides: `python_module`, the release of ComfyUI that later nodes are from, tooltips, descriptions, empty
option objects, and lists of files (which depend on the machine).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from darkroom.contract.graph.facts import FACTS_KEY
from darkroom.engine.diffusion.sampling_tables import SamplingTables
from darkroom.engine.families.comfyui_text_types import comfyui_text_types
from darkroom.engine.families.registry import families
from darkroom.engine.nodes.base import FunctionNode, InputFile, ModelFile
from darkroom.engine.nodes.built_in import built_in_nodes
from darkroom.engine.nodes.catalogue import object_info
from tests.engine.nodes.passing_on import OUTPUTS_OF_OUTPUT_NODES
from tests.engine.runtime.runs import NoFiles
from tests.reference import REFERENCE

LEFT_OUT = {"python_module", "description", "output_tooltips", "comfyui_version", FACTS_KEY}
OURS_ALONE = {
    "DarkroomRandomCheckpoint",
    "LoopResult",  # ComfyUI's has no output: it hands what a loop made to its executor
}
NOT_IN_REFERENCE = {"LoraSave", "ReferenceLatent", "SkipLayerGuidanceDiT", "SkipLayerGuidanceDiTSimple"}
NODES = {item.class_type: item for item in built_in_nodes()}
# The reference was taken for the default family.
OF_FURTHER_FAMILIES = {name for family in families() if not family.is_default for name in family.comfyui.merge_nodes}


# Types of text encoders that the recorded release does not have.
LATER_TYPES = {name for family in families() for name in family.comfyui.text_types} - comfyui_text_types().keys()
# Outputs that nodes have since ComfyUI 0.33.0: they pass on what they saved or showed (`passing_on.py`).
LATER_OUTPUTS = {class_type for class_type, outputs in OUTPUTS_OF_OUTPUT_NODES.items() if outputs}
LATER_CHOICES = (
    "index_timestep_zero",  # of reference images: Krea 2 and Qwen-Image-Edit-2511 see them so
    "exp_heun_2_x0", "exp_heun_2_x0_sde",  # samplers
)  # fmt: skip


class Environment(NoFiles):
    """An environment without files, with the samplers and schedules of an engine without packs."""

    def __init__(self) -> None:
        self._tables = SamplingTables()

    def sampler_names(self) -> list[str]:
        return list(self._tables.sampler_names())

    def schedule_names(self) -> list[str]:
        return list(self._tables.schedule_names())


def normalised(info: dict[str, Any], file_inputs: set[str]) -> dict[str, Any]:
    kept = {key: value for key, value in info.items() if key not in LEFT_OUT}
    kept["input"] = {
        section: {name: _input(item, is_file=name in file_inputs) for name, item in inputs.items()}
        for section, inputs in info["input"].items()
        if inputs
    }
    kept["input_order"] = {section: names for section, names in info["input_order"].items() if names}
    return kept


def _input(item: Any, *, is_file: bool) -> Any:
    if isinstance(item, str):
        return item
    kind = [] if is_file and isinstance(item[0], list) else item[0]
    if isinstance(kind, list):
        kind = [choice for choice in kind if choice not in (*LATER_TYPES, *LATER_CHOICES)]
    options = {key: value for key, value in (item[1] if len(item) > 1 else {}).items() if key != "tooltip"}
    if is_file:
        options.pop("options", None)
    elif "options" in options:
        options["options"] = [choice for choice in options["options"] if choice not in LATER_CHOICES]
    return [kind, options] if options else [kind]


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    """Return ComfyUI's declarations by class, of every recording: `object_info.json` and those beside it."""
    found: dict[str, Any] = {}
    for path in sorted(REFERENCE.glob("object_info*.json")):
        found |= json.loads(path.read_text("utf-8"))
    return found


@pytest.mark.parametrize("class_type", sorted(NODES.keys() - OURS_ALONE - NOT_IN_REFERENCE - OF_FURTHER_FAMILIES))
def test_a_built_in_node_declares_what_comfyuis_does(class_type: str, reference: dict[str, Any]) -> None:
    node_class = NODES[class_type]
    assert isinstance(node_class, FunctionNode)
    files = {item.name for item in node_class.parameters if isinstance(item.marker, (ModelFile, InputFile))}
    ours = json.loads(json.dumps(object_info(node_class.spec(Environment()))))
    theirs = reference[class_type]
    if class_type in LATER_OUTPUTS:
        theirs = theirs | {key: ours[key] for key in ("output", "output_is_list", "output_name")}
    assert normalised(ours, files) == normalised(theirs, files)


def test_no_name_is_given_twice() -> None:
    assert len(NODES) == len(built_in_nodes())
