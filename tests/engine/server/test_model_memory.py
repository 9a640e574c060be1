"""Preloading models by HTTP, and the memory figures as JSON and for Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.engine.server.conftest import Server
from tests.tiny_checkpoint import make_tiny_checkpoint


@pytest.fixture
def checkpoint(server: Server, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    made = make_tiny_checkpoint(tmp_path_factory.getbasetemp())
    folder = tmp_path / "models" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / made.name).hardlink_to(made)
    return made.name


async def preload(server: Server, body: Any) -> tuple[int, Any]:
    response = await server.client.post("/api/v1/preload", json=body)
    return response.status, await response.json()


async def test_a_preloaded_checkpoint_is_read_and_its_bytes_are_reported(server: Server, checkpoint: str) -> None:
    status, answer = await preload(server, {"models": [{"name": checkpoint}]})
    assert status == 200 and answer["models"][0]["bytes"] > 10_000_000


async def test_what_cannot_be_read_is_named_and_the_others_are_read(server: Server, checkpoint: str) -> None:
    models = [{"name": "not.safetensors"}, {"kind": "loras", "name": "x"}, {"name": checkpoint}]
    status, answer = await preload(server, {"models": models})
    missing, kind, good = answer["models"]
    assert status == 422
    assert missing["code"] == "bad_model_file" and "not.safetensors" in missing["error"]
    assert "checkpoints" in kind["error"] and good["bytes"] > 0


@pytest.mark.parametrize("body", [{}, {"models": "a"}, {"models": [{}]}, {"models": [], "keep": 1}])
async def test_a_body_that_asks_for_no_models_is_refused(server: Server, body: Any) -> None:
    status, answer = await preload(server, body)
    assert status == 400 and answer["error"]["type"] in ("invalid_models", "invalid_keep")


async def test_the_figures_of_memory_are_reported_as_json_and_for_prometheus(server: Server, checkpoint: str) -> None:
    await preload(server, {"models": [{"name": checkpoint}]})
    memory = await server.get("/api/v1/memory")
    assert memory["state"] == "DISABLED" and memory["device"]["total_bytes"] > memory["device"]["free_bytes"] > 0
    assert {model["role"]: model["is_kept"] for model in memory["models"]} == {
        "unet": True,
        "text_encoder": True,
        "vae": True,
    }
    assert memory["ram"]["models_bytes"] == sum(model["size_bytes"] for model in memory["models"])
    assert (await server.get("/system_stats"))["darkroom_memory"]["relief_steps"]["caches"] == 0
    response = await server.client.get("/metrics")
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(await response.text())
        for sample in family.samples
    }
    assert samples["darkroom_memory_models",] == 3
    assert samples["darkroom_memory_relief_steps_total", "tiled_vae"] == 0
    assert samples["darkroom_sampling_batches_total",] == samples["darkroom_sampling_batch_rows_total",] == 0
    assert samples["darkroom_tuning_strategy_failures_total", "cuda_graph"] == 0
    assert samples["darkroom_memory_loads_total",] == memory["counts"]["loads"]
    assert samples["darkroom_memory_device_total_bytes",] == memory["device"]["total_bytes"]
