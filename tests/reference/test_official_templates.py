"""Every official workflow template is converted, and every value of it checked against its node.

The templates are those of `comfyui-workflow-templates-json`, of the newest release of ComfyUI. A value has to have the
type of its input and lie in its range or among its choices; the name of a file has to look like one, and counts as a
file still to be fetched. Templates that call paid services are left out. Those that need classes or text encoders that
this engine does not have are told apart from converted ones, by name.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from darkroom.engine.nodes.built_in import built_in_nodes
from darkroom.engine.nodes.catalogue import object_info
from darkroom.worker.engines.graph_check import find_problems
from darkroom.worker.errors import RequestRejected
from darkroom.worker.prompts.workflows.page_graph import definitions_in, read_graph
from darkroom.worker.prompts.workflows.subgraph_values import PromotedInputs, read_host_values
from darkroom.worker.prompts.workflows.to_prompt import to_prompt
from darkroom.worker.prompts.workflows.widgets import read_class
from tests.engine.nodes.test_object_info import Environment

PACKAGE = "comfyui_workflow_templates_json"
MAX_NODES = 5000
MODELS = (".safetensors", ".pt", ".pth", ".ckpt", ".sft", ".bin", ".gguf")
FILES = (
    *(*MODELS, ".png", ".jpg", ".jpeg", ".webp"),
    *(".mp4", ".webm", ".mov", ".mp3", ".wav", ".flac", ".glb", ".svg", ".gif"),
)
# Choices of later nodes than those that could be read, by template.
LACKING_CHOICES = {
    "image_moss_image_base_t2i": "CLIPLoader.type: Value 'moss_image' not in list: type",
    "image_moss_image_t2i": "CLIPLoader.type: Value 'moss_image' not in list: type",
    "3d_pixal3d_trellis2_image_to_model": "RemeshMesh.sign_mode: Value 'solid' not in list: sign_mode",
}
LACKING_CLASSES = 16  # templates that name a class that this engine does not have; fewer are good news
# A template with an output node that nothing is linked to: ComfyUI names it, too, and runs the others.
UNLINKED = ("video_ltx2_i2v_lora", "75 SaveVideo.video: Required input is missing: video")
# Values that the uses of sub-graphs in well-known templates give: they follow the order of the definition.
KNOWN_VALUES = {
    "video_wan2_2_14B_i2v": {
        ("129:98", "width"): 640,
        ("129:95", "unet_name"): "wan2.2_i2v_high_noise_14B_fp8_scaled.safetensors",
        ("129:96", "unet_name"): "wan2.2_i2v_low_noise_14B_fp8_scaled.safetensors",
    },
    "image_flux2_text_to_image_9b": {
        ("75:68", "value"): 1024,
        ("75:73", "noise_seed"): 145965955694731,
        ("75:70", "unet_name"): "flux-2-klein-base-9b-fp8.safetensors",
    },
    "image_krea2_turbo_t2i": {("30:3", "seed"): 594361197674106, ("30:3", "steps"): 8, ("30:3", "scheduler"): "simple"},
    "3d_hunyuan3d_image_to_model": {("91:81", "algorithm"): "surface net", ("91:81", "threshold"): 0.6},
}


@pytest.fixture(scope="module")
def declared() -> dict[str, Any]:
    environment = Environment()
    found = {item.class_type: object_info(item.spec(environment)) for item in built_in_nodes()}
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def templates() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the templates that need no service, with their names."""
    pytest.importorskip(PACKAGE, reason="comfyui-workflow-templates-json is not installed")
    folder = importlib.resources.files(PACKAGE).joinpath("templates")
    index = json.loads(folder.joinpath("index.json").read_bytes())
    for entry in (entry for category in index for entry in category["templates"]):
        if entry.get("openSource") is not False:
            yield entry["name"], json.loads(folder.joinpath(f"{entry['name']}.json").read_bytes())


def files_in(prompt: dict[str, Any]) -> set[str]:
    texts = {value for node in prompt.values() for value in node["inputs"].values() if isinstance(value, str)}
    plain = {text.rsplit(" [", 1)[0] for text in texts}  # "a.png [output]"
    return {text for text in texts | plain if text.rsplit(" [", 1)[0].lower().endswith(FILES)}


def misplaced(prompt: dict[str, Any], declared: dict[str, Any]) -> Iterator[str]:
    """Yield texts that are the names of model files: a text has no range in which that would be seen."""
    for node_id, node in prompt.items():
        for section in ("required", "optional"):
            known = declared.get(node["class_type"], {"input": {}})  # classes that are not there are problems already
            for name, (kind, *options) in known["input"].get(section, {}).items():
                value = node["inputs"].get(name)
                is_text = kind == "STRING" and options and options[0].get("multiline")
                if is_text and isinstance(value, str) and value.strip().lower().endswith(MODELS):
                    yield f"{node_id} {node['class_type']}.{name}: the name of a file as text: {value}"


def problems_of(workflow: dict[str, Any], declared: dict[str, Any]) -> set[tuple[str | None, str]]:
    """Return the problems of a template, each with its kind."""
    try:
        prompt = to_prompt(workflow, declared, lambda _count: 0, MAX_NODES)
    except RequestRejected as refused:
        return {(problem.type, problem.message) for problem in refused.problems}
    found = find_problems(prompt, declared, files_in(prompt))
    assert not found.num_unlisted
    listed = {
        (problem.type, f"{problem.node_id} {problem.class_type}.{problem.field}: {problem.message}")
        for problem in found.listed
    }
    return listed | {("misplaced", text) for text in misplaced(prompt, declared)}


def test_every_value_of_every_template_fits_its_node(declared: dict[str, Any]) -> None:
    found = {name: problems_of(workflow, declared) for name, workflow in templates()}
    assert len(found) >= 259
    lacking = {name for name, problems in found.items() if {kind for kind, _ in problems} == {"unknown_class"}}
    assert len(lacking) <= LACKING_CLASSES
    wrong = {name: problems for name, problems in found.items() if problems and name not in lacking}
    assert wrong.pop(UNLINKED[0]) == {("required_input_missing", UNLINKED[1])}
    for name, told in LACKING_CHOICES.items():
        assert all(message.endswith(told) for _, message in wrong.pop(name, ()))
    assert wrong == {}


def test_well_known_templates_have_the_values_that_the_page_shows(declared: dict[str, Any]) -> None:
    found = {
        name: to_prompt(workflow, declared, lambda _count: 0, MAX_NODES)
        for name, workflow in templates()
        if name in KNOWN_VALUES
    }
    for name, values in KNOWN_VALUES.items():
        assert {place: found[name][place[0]]["inputs"][place[1]] for place in values} == values


def test_the_order_of_a_use_s_values_is_that_of_the_names_which_newer_pages_save_beside_them(
    declared: dict[str, Any],
) -> None:
    num_compared = 0
    for name, workflow in templates():
        definitions = definitions_in(workflow)
        graphs = {key: read_graph(definition) for key, definition in definitions.items()}
        promoted: dict[str, PromotedInputs] = {}
        for key, graph in graphs.items():
            promoted[key] = PromotedInputs(graph, lambda kind: read_class(kind, declared), promoted.get)
        for host in (node for graph in (read_graph(workflow), *graphs.values()) for node in graph.nodes.values()):
            if host.type in graphs and host.value_names:
                unnamed = read_host_values(replace(host, value_names=()), promoted[host.type])
                assert unnamed == read_host_values(host, promoted[host.type]), (name, host.id)
                num_compared += 1
    assert num_compared >= 30
