"""Files that a workflow names and a worker lacks, in refusals and plans: size, source, command, ways to send them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from darkroom.worker.cli.plan import plan_lines
from darkroom.worker.engines.later_nodes import find_later_node
from tests.fakes import paint
from tests.worker.models.engine_with_models import EngineWithModels, drawing
from tests.worker.running_front import RunningFront, running_front

Z_IMAGE = {
    "UNETLoader": ("unet_name", "z_image_turbo_bf16.safetensors"),
    "CLIPLoader": ("clip_name", "qwen_3_4b.safetensors"),
    "VAELoader": ("vae_name", "ae.safetensors"),
}
COMMAND = "darkroom models fetch z-image-turbo"


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[RunningFront]:
    base, outputs = tmp_path / "base", tmp_path / "outputs"
    (base / "models" / "checkpoints").mkdir(parents=True)
    (base / "models" / "checkpoints" / "dreamshaper_8.safetensors").write_bytes(b"x")
    outputs.mkdir()
    async with (
        EngineWithModels(outputs, base / "models") as engine,
        running_front(tmp_path, engine, base_directory=base) as running,
    ):
        yield running


def three_loaders() -> dict[str, Any]:
    links, nodes = {}, {}
    for place, (class_type, (field, name)) in enumerate(Z_IMAGE.items(), start=10):
        nodes[str(place)] = {"class_type": class_type, "inputs": {field: name}}
        links[f"model{place}"] = [str(place), 0]
    return {**nodes, "1": {"class_type": "Draw", "inputs": {"text": "a", "size": 3, **links}}}


async def refusal_of(front: RunningFront, workflow: dict[str, Any]) -> dict[str, Any]:
    response = await front.sync(workflow)
    assert response.status_code == 422, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


async def plan_of(front: RunningFront, workflow: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (await front.http.post("/plan", json={"workflow_json": workflow})).json()
    return found


async def test_missing_models_are_summed_up_with_the_command_that_brings_all(front: RunningFront) -> None:
    error = await refusal_of(front, three_loaders())
    assert error["message"].startswith("3 model files are missing, ") and " GB" in error["message"]
    assert f"`{COMMAND}`, or FETCH_MISSING" in error["message"] and error["summary"] == error["message"]
    for problem in error["problems"]:
        extra = problem["extra"]
        assert problem["node_id"] and problem["field"] == Z_IMAGE[problem["class_type"]][0]
        assert extra["name"] == Z_IMAGE[problem["class_type"]][1] and extra["folder"]
        assert extra["source"].startswith("hf://") and extra["command"].startswith("darkroom models fetch ")
        assert extra["source"] in problem["message"] and extra["command"] in problem["message"]
    plan = await plan_of(front, three_loaders())
    assert plan["summary"] == error["message"] and plan["summary"] in "\n".join(plan_lines(plan))


async def test_a_file_without_a_source_is_named_with_the_nearest_that_are_here(front: RunningFront) -> None:
    error = await refusal_of(front, drawing("dreamshaper_7.safetensors"))
    (problem,) = error["problems"]
    assert "no source of it is known" in problem["message"] and "dreamshaper_8.safetensors" in problem["message"]
    assert problem["extra"]["nearest"] == ["dreamshaper_8.safetensors"]
    assert "1 model file is missing (dreamshaper_7.safetensors)" in error["message"]


async def test_a_set_that_has_other_files_is_not_proposed(front: RunningFront) -> None:
    workflow = three_loaders()
    del workflow["10"], workflow["1"]["inputs"]["model10"]
    message = (await refusal_of(front, workflow))["message"]
    assert message.startswith("2 model files are missing, ") and COMMAND not in message
    assert "`darkroom models fetch " in message


async def test_other_problems_are_counted_beside_the_missing_files(front: RunningFront) -> None:
    workflow = three_loaders()
    workflow["1"]["inputs"]["size"] = "many"
    error = await refusal_of(front, workflow)
    assert error["message"].endswith("(and 1 other problem)") and len(error["problems"]) == 4


async def test_an_image_to_be_sent_is_an_input_of_the_plan_and_no_problem(front: RunningFront) -> None:
    plan = await plan_of(front, paint(image="example.png"))
    assert plan["problems"] == [] and not plan["can_run"]
    (wanted,) = plan["inputs"]
    assert wanted["name"] == "example.png" and len(wanted["ways"]) == 4
    assert f"{wanted['class_type']}.{wanted['field']}=@FILE" in wanted["ways"][-1]
    assert "to send" in "\n".join(plan_lines(plan))
    (problem,) = (await refusal_of(front, paint(image="example.png")))["problems"]
    assert "'example.png' is not here; send it as a URL, as base64" in problem["message"]
    assert problem["extra"]["ways"] == wanted["ways"]


@pytest.mark.parametrize(
    ("class_type", "words"),
    [
        ("ComboOptionTestNode", "is a node of ComfyUI 0.8.0 and later, which this engine does not have; ENGINE_URL"),
        ("ShuffleVideoDataset", "is a node of ComfyUI 0.29.0 and later"),
        ("KlingTextToVideoNode", "is a partner node of ComfyUI"),
    ],
)
async def test_a_node_of_a_later_comfyui_is_named_as_that(front: RunningFront, class_type: str, words: str) -> None:
    workflow = {**drawing("dreamshaper_8.safetensors"), "7": {"class_type": class_type, "inputs": {}}}
    workflow["1"]["inputs"]["model11"] = ["7", 0]
    problems = (await refusal_of(front, workflow))["problems"]
    assert any(words in problem["message"] for problem in problems)
    plan = await plan_of(front, workflow)
    (missing,) = plan["missing_nodes"]
    later = find_later_node(class_type)
    assert later is not None and missing["pack"] is None
    assert missing["comfyui"] == {"version": later.version, "is_partner": later.is_partner, "message": later.words}
    assert words in "\n".join(plan_lines(plan)) and "no pack" not in "\n".join(plan_lines(plan))


def test_no_node_of_this_engine_is_called_a_later_one() -> None:
    from darkroom.engine.nodes.built_in import built_in_nodes
    from tools.node_table import NoFiles

    own = [node.spec(NoFiles()).class_type for node in built_in_nodes()]
    assert [name for name in own if find_later_node(name) is not None] == []
