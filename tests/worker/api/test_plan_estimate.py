"""The estimate of POST /plan: by the family of each model, also of missing ones; no number where it is unknown."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from darkroom.contract.graph.work import PromptWork
from darkroom.engine.families import registry
from darkroom.worker.api.job_making import price_of
from darkroom.worker.cli.plan import plan_lines
from darkroom.worker.engines.families import Family, read_families
from darkroom.worker.models.manifest import built_in_manifest
from darkroom.worker.prompts.missing_families import named_family
from tests.fakes import draw
from tests.worker.models.engine_with_models import EngineWithModels
from tests.worker.running_front import RunningFront, running_front


def described_families() -> list[dict[str, Any]]:
    return [
        {
            "name": family.name,
            "default": registry.described_defaults(family, family.default),
            "file_words": list(family.file_words),
            "other_file_words": list(family.other_file_words),
            "file_billions": dict(family.file_billions),
        }
        for family in registry.families()
    ]


class EngineWithFamilies(EngineWithModels):
    """Describes the families of an engine of ours. `files` are the families of the files that are here."""

    kind = "cuda"

    def __init__(self, folder: Path, models: Path) -> None:
        super().__init__(folder, models)
        self.files = {"here.safetensors": "flux"}

    def more_routes(self) -> Sequence[web.RouteDef]:
        return web.get("/api/v1/families", self._families), web.get("/api/v1/checkpoints", self._checkpoints)

    async def _object_info(self, request: web.Request) -> web.Response:
        info = json.loads((await super()._object_info(request)).text or "")
        for name in ("KSampler", "EmptyLatentImage"):
            info[name] = {"input": {}, "output": ["LATENT"], "output_node": False, "python_module": "nodes"}
        return web.json_response(info)

    async def _families(self, _request: web.Request) -> web.Response:
        return web.json_response(described_families())

    async def _checkpoints(self, request: web.Request) -> web.Response:
        names = request.query.getall("name", list(self.files))
        found = [{"name": name, "family": self.files[name]} for name in names if name in self.files]
        return web.json_response({"checkpoints": found})

    async def _stats(self, _request: web.Request) -> web.Response:
        return web.json_response({"system": {}, "devices": [{"name": "it", "type": self.kind}]})


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[RunningFront]:
    base, outputs = tmp_path / "base", tmp_path / "outputs"
    (base / "models" / "checkpoints").mkdir(parents=True)
    (base / "models" / "checkpoints" / "here.safetensors").write_bytes(b"x")
    outputs.mkdir()
    async with (
        EngineWithFamilies(outputs, base / "models") as engine,
        running_front(tmp_path, engine, base_directory=base, fetch_missing="manifest") as running,
    ):
        yield running


def sampling(loader: str, name: str, **sampler: Any) -> dict[str, Any]:
    field = {"CheckpointLoaderSimple": "ckpt_name", "UNETLoader": "unet_name"}[loader]
    inputs = {"model": ["1", 0], "latent_image": ["2", 0], "sampler_name": "euler", "steps": 20, "cfg": 1.0, **sampler}
    return {
        "1": {"class_type": loader, "inputs": {field: name}},
        "2": {"class_type": "EmptyLatentImage", "inputs": {"width": 1024, "height": 1024, "batch_size": 1}},
        "3": {"class_type": "KSampler", "inputs": inputs},
    }


async def plan_of(front: RunningFront, workflow: dict[str, Any], **terms: Any) -> dict[str, Any]:
    response = await front.http.post("/plan", params=terms, json={"workflow_json": workflow})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


@pytest.mark.parametrize(
    ("loader", "name", "least", "most"),
    [
        ("UNETLoader", "flux1-dev.safetensors", 8, 20),
        ("UNETLoader", "z_image_turbo_bf16.safetensors", 8, 20),  # of 20 steps; its own nine take half of it
        ("CheckpointLoaderSimple", "sd_xl_base_1.0.safetensors", 0.8, 3),
        ("CheckpointLoaderSimple", "v1-5-pruned-emaonly-fp16.safetensors", 0.4, 2),
        ("UNETLoader", "wan2.1_t2v_14B_bf16.safetensors", 10, 60),
        ("UNETLoader", "Chroma1-HD.safetensors", 8, 20),
    ],
)
async def test_a_model_that_is_not_here_is_priced_as_its_family(
    front: RunningFront, loader: str, name: str, least: float, most: float
) -> None:
    plan = await plan_of(front, sampling(loader, name), card="RTX 4090", price_per_hour=3600)
    estimate = plan["estimate"]
    assert least < estimate["run_seconds"] < most and "data sheet" in estimate["source"]
    assert estimate["price"] == pytest.approx(estimate["run_seconds"], rel=0.05)
    assert "price" in "\n".join(plan_lines(plan))


async def test_a_network_of_another_size_is_priced_by_its_size(front: RunningFront) -> None:
    small = await plan_of(front, sampling("UNETLoader", "wan2.1_t2v_1.3B_bf16.safetensors"), card="H100")
    large = await plan_of(front, sampling("UNETLoader", "wan2.1_t2v_14B_bf16.safetensors"), card="H100")
    assert large["estimate"]["run_seconds"] > 4 * small["estimate"]["run_seconds"]
    assert large["estimate"]["load_units"] > 4 * small["estimate"]["load_units"]


@pytest.mark.parametrize(
    "name", ["mystery.safetensors", "ovis_image_7b_bf16.safetensors", "sensenova_u1_5_8b.safetensors"]
)
async def test_a_model_of_unknown_family_has_no_number_but_a_reason(front: RunningFront, name: str) -> None:
    front.front.services.jobs.run_clock.expect(2.0)
    for terms in ({}, {"card": "H100", "price_per_hour": 1}):
        plan = await plan_of(front, sampling("UNETLoader", name), **terms)
        estimate = plan["estimate"]
        assert (estimate["load_units"], estimate["run_seconds"], estimate["price"]) == (None, None, None)
        assert estimate["source"].startswith(f"the family of {name} is not known")
        assert f"run            unknown: the family of {name}" in "\n".join(plan_lines(plan))


async def test_a_sampler_of_unknown_evaluations_has_no_number_but_a_reason(front: RunningFront) -> None:
    workflow = sampling("CheckpointLoaderSimple", "here.safetensors", sampler_name="dpm_adaptive")
    estimate = (await plan_of(front, workflow))["estimate"]
    assert (estimate["load_units"], estimate["run_seconds"]) == (None, None)
    assert "sampler dpm_adaptive" in estimate["source"]


async def test_a_job_says_what_was_assumed_for_its_cost(front: RunningFront) -> None:
    for sampler, expected in (("euler", []), ("dpm_adaptive", ["cost_assumed"])):
        workflow = sampling("CheckpointLoaderSimple", "here.safetensors", sampler_name=sampler) | {"9": draw()["1"]}
        response = await front.http.post("/generate", json={"input": {"workflow_json": workflow}})
        assert response.status_code == 202, response.text
        assert [item["type"] for item in response.json().get("warnings", [])] == expected


async def test_a_card_that_is_only_memory_has_no_seconds(front: RunningFront) -> None:
    plan = await plan_of(front, sampling("UNETLoader", "flux1-dev.safetensors"), vram_gb=24)
    assert plan["estimate"]["run_seconds"] is None and "card" in plan["estimate"]["source"]
    assert "seconds unknown: " in "\n".join(plan_lines(plan))


async def test_a_worker_without_jobs_and_benchmark_has_no_seconds(front: RunningFront) -> None:
    plan = await plan_of(front, sampling("CheckpointLoaderSimple", "here.safetensors"))
    assert plan["estimate"]["run_seconds"] is None and plan["estimate"]["load_units"] > 1000
    assert "no job and no benchmark" in plan["estimate"]["source"]


async def test_a_processors_pace_counts_in_operations(front: RunningFront) -> None:
    front.front.services.jobs.run_clock.expect(1.0)
    workflow = sampling("CheckpointLoaderSimple", "here.safetensors")
    on_card = (await plan_of(front, workflow))["estimate"]["run_seconds"]
    assert isinstance(front.engine, EngineWithFamilies)
    front.engine.kind = "cpu"
    assert (await plan_of(front, workflow))["estimate"]["run_seconds"] > 1.5 * on_card


async def test_a_job_that_brings_its_model_costs_what_the_plan_says(front: RunningFront) -> None:
    workflow = sampling("UNETLoader", "flux1-dev.safetensors")
    services = front.front.services
    engine = services.engines.pool.clients_serving[0]
    planned = (await plan_of(front, workflow))["estimate"]["load_units"]
    work = PromptWork(workflow, await engine.known_object_info())
    assert (await price_of(services, work, engine, {})).cost == pytest.approx(planned, rel=0.01)
    assert planned > 4 * (await price_of(services, work, engine)).cost


NAMES = {
    "flux1-dev-fp8.safetensors": "flux",
    "flux/svdq-int4-flux.1-dev.safetensors": "flux",
    "flux-2-klein-4b-fp8.safetensors": "flux2",
    "qwen_image_edit_2509_fp8_e4m3fn.safetensors": "qwen_image",
    "qwen_image_2.1.safetensors": "qwen_image21",
    "wan2.2_i2v_high_noise_14B_fp8_scaled.safetensors": "wan",
    "wan2.2_ti2v_5B_fp16.safetensors": "wan22",
    "sd3.5_large.safetensors": "sd3",
    "sd_xl_refiner_1.0.safetensors": "sdxl_refiner",
    "ltx-2-19b-dev.safetensors": "ltx2",
    "ltxv-2b-0.9.6-dev-04-25.safetensors": "ltx_video",
    "hunyuan_video_t2v_720p_bf16.safetensors": "hunyuan_video",
    "hunyuanimage2.1_refiner.safetensors": "hunyuan_image_refiner",
    "svd_xt.safetensors": "svd",
    "ace_step_v1_3.5b.safetensors": "ace_step",
    "ace_step_1.5_turbo.safetensors": "ace_step15",
    "dreamshaper_8.safetensors": "",
}


def test_names_of_files_tell_the_families() -> None:
    families = read_families(described_families())
    told: dict[str, Family | None] = {name: named_family(name, families) for name in NAMES}
    assert {name: "" if family is None else family.name for name, family in told.items()} == NAMES


def test_every_known_file_of_a_network_is_named_as_its_family_or_as_none() -> None:
    families = read_families(described_families())
    wrong = {
        entry.name: (found.name, entry.families)
        for entry in built_in_manifest().entries.values()
        if entry.kind in ("checkpoints", "diffusion_models") and entry.families
        if (found := named_family(entry.name, families)) is not None and found.name not in entry.families
    }
    assert not wrong
