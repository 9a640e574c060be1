"""Every official template of ComfyUI 0.3.64 that calls no paid service is converted and has no problem here.

Names of models and input files count as files still to be fetched. The templates are those of the package of the extra
front-end.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterator
from typing import Any

import pytest

from engine.nodes.built_in import built_in_nodes
from engine.nodes.catalogue import object_info
from tests.engine.nodes.test_object_info import Environment
from worker.engines.graph_check import find_problems
from worker.errors import RequestRejected
from worker.workflows.to_prompt import to_prompt

PACKAGE = "comfyui_workflow_templates"
SERVICES = "api_"  # how the names of templates begin that call paid services
MAX_NODES = 5000
REFUSED = {
    # Its page has a recorder of sounds, and a template holds no recording.
    "video_humo": {"needs a sound that the page records"},
    # Nodes of three packs.
    "video_wan2_2_14B_animate": {"unknown node class"},
}
FILES = (
    *(".safetensors", ".pt", ".pth", ".ckpt", ".sft", ".bin", ".png", ".jpg", ".jpeg", ".webp"),
    *(".mp4", ".webm", ".mov", ".mp3", ".wav", ".flac", ".glb", ".svg", ".gif"),
)


def templates() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(importlib.resources.files(PACKAGE).joinpath("templates").iterdir(), key=lambda item: item.name):
        workflow = json.loads(path.read_bytes()) if path.name.endswith(".json") else None
        if isinstance(workflow, dict) and "nodes" in workflow and not path.name.startswith(SERVICES):
            yield path.name.removesuffix(".json"), workflow


def files_in(prompt: dict[str, Any]) -> set[str]:
    texts = {value for node in prompt.values() for value in node["inputs"].values() if isinstance(value, str)}
    plain = {text.rsplit(" [", 1)[0] for text in texts}  # "a.png [output]"
    return {text for text in texts | plain if text.rsplit(" [", 1)[0].lower().endswith(FILES)}


def problems_of(workflow: dict[str, Any], declared: dict[str, Any]) -> set[str]:
    try:
        prompt = to_prompt(workflow, declared, lambda _count: MAX_NODES)
    except RequestRejected as refused:
        return {problem.message.split(": ", 1)[-1] for problem in refused.problems}
    found = find_problems(prompt, declared, files_in(prompt))
    return {f"{problem.node_id} {problem.class_type}.{problem.field}: {problem.message}" for problem in found.listed}


@pytest.mark.slow
def test_every_template_has_no_problem() -> None:
    pytest.importorskip(PACKAGE, reason="the extra front-end is not installed")
    environment = Environment()
    declared = json.loads(
        json.dumps({item.class_type: object_info(item.spec(environment)) for item in built_in_nodes()})
    )
    found = {name: problems_of(workflow, declared) for name, workflow in templates()}
    assert len(found) >= 100
    assert {name: problems for name, problems in found.items() if problems} == REFUSED
