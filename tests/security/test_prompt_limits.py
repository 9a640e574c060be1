"""Limits and rules for one prompt: 422 with node, input, value and limit, before the engine hears of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import OBJECT_INFO, FakeEngine, draw, steps, wait
from tests.worker.running_front import RunningFront, running_front


@contextlib.asynccontextmanager
async def limited(folder: Path, **settings: Any) -> AsyncIterator[RunningFront]:
    (folder / "engine").mkdir(exist_ok=True)
    async with FakeEngine(folder / "engine") as engine, running_front(folder, engine, **settings) as front:
        yield front


async def problems(front: RunningFront, **body: Any) -> list[dict[str, Any]]:
    answer = await front.http.post("/generate/sync", json={"input": body})
    assert answer.status_code == 422, answer.text
    assert front.engine.runs == []
    found: list[dict[str, Any]] = answer.json()["error"]["problems"]
    return found


async def test_steps_of_a_workflow(tmp_path: Path) -> None:
    async with limited(tmp_path, prompt_max_steps=20) as front:
        (problem,) = await problems(front, workflow_json=steps(21))
        assert (problem["node_id"], problem["field"], problem["type"]) == ("2", "steps", "max_steps")
        assert (problem["extra"], problem["allowed"]) == ({"received": 21}, {"maximum": 20})
        answer = await front.sync(steps(20))
        assert answer.status_code == 200


@pytest.mark.parametrize(
    ("limit", "modifications", "field"),
    [
        ({"prompt_max_pixels": 512 * 512}, {"width": 1024, "height": 512}, "input.modifications.width"),
        ({"prompt_max_steps": 10}, {"steps": 11}, "input.modifications.steps"),
    ],
)
async def test_limits_hold_for_modifiers(
    tmp_path: Path, limit: dict[str, int], modifications: dict[str, Any], field: str
) -> None:
    async with limited(tmp_path, **limit) as front:
        found = await problems(front, modifier="Text2Image", modifications={"prompt": "x", **modifications})
        assert [problem["field"] for problem in found] == [field]


@pytest.mark.parametrize(
    ("modifier", "modifications", "field"),
    [
        ("Text2Video", {"frames": 97, "fps": 24, "video_latent": "EmptyHunyuanLatentVideo"}, "frames"),
        ("Text2Audio", {"seconds": 30, "audio_latent": "EmptyAceStepLatentAudio"}, "seconds"),
    ],
)
async def test_seconds_of_videos_and_audio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modifier: str, modifications: dict[str, Any], field: str
) -> None:
    monkeypatch.setitem(OBJECT_INFO, "VAEDecode", {**OBJECT_INFO["VAEDecode"], "output": ["IMAGE"]})
    async with limited(tmp_path, prompt_max_seconds=4.0) as front:
        found = await problems(front, modifier=modifier, modifications={"prompt": "x", **modifications})
        (problem,) = [problem for problem in found if problem.get("type") == "max_seconds"]
        assert problem["field"] == f"input.modifications.{field}"
        assert problem["allowed"] == {"maximum": 4.0}


async def test_many_nodes_of_a_modifier_are_too_many_as_well(tmp_path: Path) -> None:
    async with limited(tmp_path, prompt_max_nodes=5) as front:
        found = await problems(front, modifier="Text2Image", modifications={"prompt": "x"})
        assert [problem["type"] for problem in found] == ["max_nodes"]


async def test_outputs_over_the_limit_are_not_kept(tmp_path: Path) -> None:
    async with limited(tmp_path, prompt_max_output_bytes=100) as front:
        answer = await front.sync(draw("hello", 64), request_id="large")
        assert answer.status_code == 422
        error = answer.json()["error"]
        assert (error["code"], error["limit"], error["node_id"]) == ("outputs_too_large", "output_bytes", "1")
        assert (error["value"], error["allowed"]) == (320, 100)
        assert not (tmp_path / "state" / "jobs" / "large").exists()
        assert (await front.sync(draw("hello", 8))).status_code == 200


async def test_denied_and_allowed_nodes_and_packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OBJECT_INFO, "Wait", {**OBJECT_INFO["Wait"], "python_module": "custom_nodes.Slow-Pack"})
    monkeypatch.setitem(OBJECT_INFO, "Draw", {**OBJECT_INFO["Draw"], "python_module": "nodes"})
    async with limited(tmp_path, denied_nodes="Say,Fai*", denied_node_packs="slow-*,Slow-*") as front:
        (problem,) = await problems(front, workflow_json=wait())
        assert (problem["node_id"], problem["class_type"], problem["type"]) == ("1", "Wait", "node_not_allowed")
        assert problem["extra"]["rule"] == "DENIED_NODE_PACKS=Slow-*"
        graph = {"a": {"class_type": "Say", "inputs": {"text": "x"}}, "b": {"class_type": "Fail", "inputs": {}}}
        found = await problems(front, workflow_json=graph)
        assert [problem["extra"]["rule"] for problem in found] == ["DENIED_NODES=Say", "DENIED_NODES=Fai*"]
        assert (await front.sync(draw())).status_code == 200


async def test_modifiers_stay_usable_beside_an_allow_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OBJECT_INFO, "Draw", {**OBJECT_INFO["Draw"], "python_module": "nodes"})
    async with limited(tmp_path, allowed_node_packs="Nothing", denied_nodes="VAEEncode") as front:
        (problem,) = await problems(front, workflow_json=draw())
        assert problem["extra"]["rule"] == "ALLOWED_NODE_PACKS"
        assert (await front.http.get("/modifiers")).status_code == 200
        found = await problems(front, modifier="Text2Image", modifications={"prompt": "x"})
        assert "node_not_allowed" not in {problem.get("type") for problem in found}  # the fake engine lacks its nodes
        image = {"prompt": "x", "input_image": "a.png"}
        found = await problems(front, modifier="Image2Image", modifications=image)
        assert [problem["extra"]["rule"] for problem in found] == ["DENIED_NODES=VAEEncode"]
