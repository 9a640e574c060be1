"""`/api/v1/workflow` checks without running: every problem, the files still to come, what would be needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from darkroom.contract.graph.explain import explain_prompt
from darkroom.contract.graph.object_info import rules_in
from darkroom.engine.models.random_weights import write_random_checkpoint
from tests.engine.server.conftest import Server, shown


def image(name: str) -> dict[str, Any]:
    return {
        "1": {"class_type": "LoadImage", "inputs": {"image": name}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    }


async def test_a_good_workflow_is_valid_and_does_not_run(server: Server) -> None:
    answer = await server.post("/api/v1/workflow", prompt=shown())
    assert (answer["valid"], answer["outputs"], answer["error"], answer["node_errors"]) == (True, ["2"], None, {})
    assert await server.get("/history") == {} and (await server.get("/queue"))["queue_running"] == []


async def test_every_problem_is_reported_at_once(server: Server) -> None:
    prompt = {**image("missing.png"), **{f"n{key}": node for key, node in shown(1000).items()}}
    prompt["n2"]["inputs"]["number"] = ["n1", 0]
    answer = await server.post("/api/v1/workflow", prompt=prompt)
    assert answer["valid"] is False and answer["outputs"] == []
    assert {node: entry["errors"][0]["type"] for node, entry in answer["node_errors"].items()} == {
        "1": "custom_validation_failed",
        "n1": "value_bigger_than_max",
    }


async def test_every_problem_has_all_that_a_program_needs(server: Server) -> None:
    prompt = {**image("missing.png"), **{f"n{key}": node for key, node in shown(1000).items()}}
    prompt["n2"]["inputs"]["number"] = ["n1", 0]
    answer = await server.post("/api/v1/workflow", prompt=prompt)
    absent, over = answer["problems"]
    assert absent.pop("allowed") == []
    assert absent == {
        "message": "Value 'missing.png' not in list: image",
        "type": "value_not_in_list",
        "field": "image",
        "node_id": "1",
        "class_type": "LoadImage",
        "extra": {"received": "missing.png"},
    }
    assert (over["node_id"], over["field"], over["type"]) == ("n1", "value", "value_bigger_than_max")
    assert over["allowed"]["max"] < over["extra"]["received"] and over["message"].endswith(": value")


@pytest.mark.parametrize(
    "inputs",
    [
        {"images": ["99", 0]},
        {"images": ["1", 7]},
        {"images": ["2", 0]},
        {"images": "text"},
        {"images": [1]},
        {"filename_prefix": ["1", 1]},
        {"nothing_of_the_kind": ["1", 0]},
        {},
    ],
)
async def test_a_foreign_engines_description_gives_the_same_problems(server: Server, inputs: dict[str, Any]) -> None:
    prompt = image("missing.png")
    prompt["2"]["inputs"] |= inputs
    if not inputs:
        del prompt["2"]["inputs"]["images"]
    answer = await server.post("/api/v1/workflow", prompt=prompt)
    info = await server.get("/object_info")
    assert explain_prompt(prompt, rules_in(info)).as_json()["problems"] == answer["problems"] != []


async def test_files_that_will_be_there_are_no_problem(server: Server) -> None:
    for name in ("darkroom/a.png", "darkroom/a.png [input]"):
        answer = await server.post("/api/v1/workflow", prompt=image(name), pending_files=["darkroom/a.png"])
        assert (answer["valid"], answer["outputs"], answer["error"]) == (True, ["2"], None)
    other = await server.post("/api/v1/workflow", prompt=image("b.png"), pending_files=["darkroom/a.png"])
    assert other["valid"] is False


async def test_a_broken_image_is_named_with_what_was_expected(server: Server) -> None:
    (server.settings.input_path / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n123")
    answer = await server.post("/api/v1/workflow", prompt=image("cut.png"))
    details = answer["node_errors"]["1"]["errors"][0]["details"]
    assert "cut.png" in details and "expected a whole image file" in details


async def test_the_models_and_classes_it_would_need_are_listed(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "checkpoints"
    folder.mkdir(parents=True)
    write_random_checkpoint(folder / "there.safetensors")
    loader = {"class_type": "CheckpointLoaderSimple"}
    prompt = {
        "1": {**loader, "inputs": {"ckpt_name": "there.safetensors"}},
        "2": {**loader, "inputs": {"ckpt_name": "not.safetensors"}},
        "3": {"class_type": "Unheard", "inputs": {}},
        "4": {"class_type": "Unheard", "inputs": {}},
        **{f"s{key}": node for key, node in image("a.png").items()},
    }
    answer = await server.post("/api/v1/workflow", prompt=prompt)
    assert answer["missing_nodes"] == ["Unheard"]
    assert [(model["folder"], model["name"], model["present"]) for model in answer["models"]] == [
        ("checkpoints", "there.safetensors", True),
        ("checkpoints", "not.safetensors", False),
    ]
    assert answer["valid"] is False and answer["error"]["type"] == "invalid_prompt"
    assert [error["details"] for error in answer["errors"]] == ["Node ID '#3'", "Node ID '#4'"]
    assert set(answer["node_errors"]) == {"2", "s1", "s2"} and answer["outputs"] == []
    refused = await (await server.client.post("/prompt", json={"prompt": prompt})).json()
    assert refused["error"]["type"] == "invalid_prompt" and refused["node_errors"] == {}


async def test_what_is_no_prompt_is_refused(server: Server) -> None:
    for body in ({}, {"prompt": {}, "pending_files": "x"}, {"prompt": {}, "partial_execution_targets": 3}):
        assert (await server.client.post("/api/v1/workflow", json=body)).status == 400
    prompts: tuple[Any, ...] = ([], "x", {"1": 3}, {"1": {"inputs": {}}}, {})
    for prompt in prompts:
        answer = await server.post("/api/v1/workflow", prompt=prompt)
        assert answer["valid"] is False and answer["error"]
