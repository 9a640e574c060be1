"""POST /plan and its parts: missing nodes with their packs, missing models with their sources, bytes, limits, cost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from darkroom.worker.cli.main import app
from darkroom.worker.cli.plan import plan_lines
from darkroom.worker.prompts.cards import card_bytes
from darkroom.worker.prompts.workflows.known_packs import find_pack
from darkroom.worker.prompts.workflows.node_uses import model_hints
from tests.fakes import draw
from tests.worker.models.engine_with_models import EngineWithModels, drawing
from tests.worker.prompts.workflows.pages import node, page
from tests.worker.running_front import RunningFront, running_front

SD15 = "v1-5-pruned-emaonly-fp16.safetensors"
SD15_BYTES = 2_132_696_762


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[RunningFront]:
    base, outputs = tmp_path / "base", tmp_path / "outputs"
    (base / "models" / "checkpoints").mkdir(parents=True)
    (base / "models" / "checkpoints" / "here.safetensors").write_bytes(b"x")
    outputs.mkdir()
    async with (
        EngineWithModels(outputs, base / "models") as engine,
        running_front(
            tmp_path, engine, base_directory=base, fetch_missing="manifest", prompt_max_nodes=40, denied_nodes="Say"
        ) as running,
    ):
        yield running


async def plan_of(front: RunningFront, workflow: dict[str, Any]) -> dict[str, Any]:
    response = await front.http.post("/plan", json={"workflow_json": workflow})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_a_workflow_that_runs_lacks_nothing(front: RunningFront) -> None:
    plan = await plan_of(front, drawing("here.safetensors"))
    assert plan["can_run"] and not plan["missing_nodes"] and not plan["models"] and not plan["problems"]
    assert plan["num_models_here"] == 1 and plan["estimate"]["load_units"] > 0
    assert plan["fetch"] == {"num_files": 0, "bytes": 0, "num_of_unknown_size": 0} | {
        "free_bytes": plan["fetch"]["free_bytes"],
        "fits": True,
    }
    assert front.engine.runs == []
    assert list(plan_lines(plan))[-1] == "it can run"


async def test_a_run_has_a_price_once_the_pace_is_known(front: RunningFront) -> None:
    front.front.services.jobs.run_clock.expect(2.0)
    response = await front.http.post(
        "/plan", params={"price_per_hour": 3600}, json={"workflow_json": drawing("here.safetensors")}
    )
    estimate = response.json()["estimate"]
    assert estimate["price"] == pytest.approx(estimate["run_seconds"], rel=0.05)
    assert "price" in "\n".join(plan_lines(response.json()))
    refused = await front.http.post("/plan", params={"card": "Voodoo 2"}, json={"workflow_json": drawing()})
    assert refused.status_code == 422 and "rtx4090" in refused.text


def test_cards_are_known_by_their_names() -> None:
    assert card_bytes("NVIDIA GeForce RTX 4090") == card_bytes("rtx-4090") == 24 << 30
    assert card_bytes("A100-40GB") == 40 << 30 and card_bytes("Tesla T4") == 16 << 30
    assert card_bytes("Voodoo 2") is None


def test_the_memory_of_stages_is_said_in_words() -> None:
    gib = 1 << 30
    stage = {
        "node_id": "6", "class_type": "KSampler", "stage": "network", "model": "flux1-dev.safetensors",
        "weights_bytes": 22 * gib, "working_bytes": gib, "loaded_bytes": 20 * gib, "streamed_bytes": 2 * gib,
        "evicted": [{"stage": "text_encoder", "model": "t5.safetensors"}], "device_bytes": 23 * gib, "missing_bytes": 0,
    }  # fmt: skip
    memory = {"total_bytes": 24 * gib, "is_processor": False, "stages": [stage], "fits": True, "unknown": ["x.gguf"]}
    fetch = {"num_files": 0, "bytes": 0, "num_of_unknown_size": 0, "free_bytes": 0, "fits": True}
    estimate = {"load_units": None, "run_seconds": None, "wait_seconds": 0.0, "price": None, "source": ""}
    plan = {"missing_nodes": [], "models": [], "problems": [], "limits": [], "fetch": fetch, "estimate": estimate}
    first, second, _ = plan_lines({**plan, "memory": memory, "can_run": True})
    assert first.endswith(
        "network of flux1-dev.safetensors (node 6): 22.00 GiB, takes 23.00 GiB of 24.00 GiB, 2.00 GiB layer by layer; "
        "the text encoder of t5.safetensors must leave"
    )
    assert second == "memory         x.gguf: unknown size"


async def test_a_known_model_has_its_source_size_and_licence(front: RunningFront) -> None:
    plan = await plan_of(front, drawing(SD15, SD15))
    (model,) = plan["models"]
    assert plan["can_run"] and model["is_fetched"] and model["kind"] == "checkpoints"
    assert model["sources"][0].startswith("hf://Comfy-Org/") and "OpenRAIL" in model["licence"].replace(" ", "")
    assert plan["fetch"]["bytes"] == SD15_BYTES and plan["fetch"]["num_files"] == 1


async def test_an_unknown_model_and_a_missing_node_are_named_with_what_is_known(front: RunningFront) -> None:
    workflow = {
        **drawing("nobody-knows.safetensors"),
        "20": {"class_type": "VHS_VideoCombine", "inputs": {"images": ["1", 0]}},
        "21": {"class_type": "NobodyHasThis", "inputs": {"name": SD15}},
    }
    plan = await plan_of(front, workflow)
    assert not plan["can_run"]
    assert [item["class_type"] for item in plan["missing_nodes"]] == ["VHS_VideoCombine", "NobodyHasThis"]
    assert plan["missing_nodes"][0]["pack"]["name"] == "ComfyUI-VideoHelperSuite"
    assert plan["missing_nodes"][1]["pack"] is None
    unknown, known = plan["models"]
    assert (unknown["name"], unknown["sources"], unknown["field"]) == ("nobody-knows.safetensors", [], "ckpt_name")
    assert known["kind"] == "checkpoints" and known["node_id"] == "21"
    text = "\n".join(plan_lines(plan))
    assert "missing node   VHS_VideoCombine (in ComfyUI-VideoHelperSuite" in text and "it cannot run" in text


async def test_a_page_tells_packs_and_addresses(front: RunningFront) -> None:
    models = [{"name": "own.safetensors", "url": "https://models.example/own.safetensors", "directory": "loras"}]
    own = node(1, "SomeLoader", ["own.safetensors", 1.0], properties={"cnr_id": "someone-pack", "models": models})
    muted = node(2, "AnotherLoader", ["other.safetensors"], mode=2)
    plan = await plan_of(front, page(own, muted, node(3, "Draw", ["a", 3])))
    (missing,) = plan["missing_nodes"]
    assert missing["pack"] == {"name": "someone-pack", "url": "", "known_by": "workflow"}
    (model,) = plan["models"]
    assert model["known_by"] == "workflow" and not model["is_fetched"]
    assert model["sources"] == ["https://models.example/own.safetensors"]
    assert plan["fetch"]["num_of_unknown_size"] == 1


async def test_limits_and_other_problems_are_told_apart(front: RunningFront) -> None:
    plan = await plan_of(front, {**draw(), "2": {"class_type": "Say", "inputs": {"text": "a"}}})
    assert plan["limits"][0]["node_id"] == "2" and plan["problems"] == [] and not plan["can_run"]
    plan = await plan_of(front, draw(size=1000))
    assert plan["problems"][0]["field"] == "size" and plan["limits"] == []
    many = {str(place): draw()["1"] for place in range(50)}
    response = await front.http.post("/plan", json={"workflow_json": many})
    assert response.status_code == 422


async def test_what_is_no_workflow_is_refused(front: RunningFront) -> None:
    for body in ({"workflow_json": 5}, {}):
        assert (await front.http.post("/plan", json=body)).status_code == 422


@pytest.mark.parametrize(
    ("class_type", "pack"),
    [
        ("Power Lora Loader (rgthree)", "rgthree-comfy"),
        ("easy kSampler", "ComfyUI-Easy-Use"),
        ("ImageResize+", "ComfyUI_essentials"),
        ("WD14Tagger|pysssss", "ComfyUI-WD14-Tagger"),
        ("DWPreprocessor", "comfyui_controlnet_aux"),
        ("LayerMask: SegmentAnythingUltra V2", "ComfyUI_LayerStyle"),
        ("UnetLoaderGGUF", "ComfyUI-GGUF"),
        ("FaceDetailer", "ComfyUI-Impact-Pack"),
    ],
)
def test_packs_are_found_by_the_names_of_classes(class_type: str, pack: str) -> None:
    found = find_pack(class_type)
    assert found is not None and found.name == pack and found.url.startswith("https://github.com/")


def test_a_pack_that_the_page_notes_wins() -> None:
    found = find_pack("VHS_LoadVideo", "someone/fork-of-it")
    assert found is not None and found.url == "https://github.com/someone/fork-of-it"
    assert find_pack("NobodyHasThis") is None


def test_hints_of_a_page_are_read_with_care() -> None:
    good = {"name": "a.safetensors", "url": "https://x/a.safetensors", "directory": "vae"}
    hashed = {**good, "name": "b.safetensors", "hash": "AB" * 32, "hash_type": "SHA256"}
    inner = {"nodes": [node(1, "X", properties={"models": [good, hashed, {"name": 1}, "text"]})]}
    document = {
        **page(node(2, "Y", properties={"models": "text"})),
        "definitions": {"subgraphs": [{"id": "i", **inner}]},
    }
    found = model_hints(document)
    assert [item.sha256 for item in found] == [None, "ab" * 32]


async def test_the_command_prints_the_plan(front: RunningFront, tmp_path: Path) -> None:
    file = tmp_path / "workflow.json"
    file.write_text(json.dumps(drawing(SD15)))
    done = await asyncio.to_thread(CliRunner().invoke, app, ["plan", str(file), "--url", front.url])
    assert done.exit_code == 0 and f"missing model  checkpoints/{SD15} (2.13 GB from hf://" in done.output
    file.write_text("no json")
    done = await asyncio.to_thread(CliRunner().invoke, app, ["plan", str(file), "--url", front.url])
    assert done.exit_code == 2


async def test_a_modifier_is_planned_as_the_workflow_that_it_makes(front: RunningFront) -> None:
    body = {"input": {"modifier": "Text2Image", "modifications": {"prompt": "a fox", "steps": 4}}}
    reply = await front.http.post("/plan", json=body)
    assert reply.status_code == 200, reply.text
    plan = reply.json()
    assert (plan["num_models_here"], plan["models"]) == (1, [])
    sampled = {item["class_type"] for item in plan["missing_nodes"]}
    assert "KSampler" in sampled, "the engine of these tests has few classes"
    assert plan["estimate"]["load_units"] > 0
    for wrong in ({"modifier": "Text2Imag"}, {"modifier": "Text2Image", "modifications": {"steps": "many"}}):
        refused = await front.http.post("/plan", json={"input": wrong})
        assert refused.status_code == 422
        assert refused.json()["error"]["problems"][0]["field"].startswith("input.modif")
    assert front.engine.runs == []
