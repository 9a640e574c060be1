"""A benchmark workload of the operator's own: its source, and the words for its mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from darkroom.contract.graph.cost import price_of
from darkroom.contract.graph.work import PromptWork
from darkroom.modifiers.registry import build_registry
from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.qualification.own_workload import find_own_workload
from darkroom.worker.settings.environment import load_settings
from darkroom.worker.settings.qualification import BenchmarkConfig
from tests.worker.engines.test_families import LARGE

WORKFLOW = {"1": {"class_type": "Draw", "inputs": {"seed": 1}}}
REGISTRY = build_registry()


def config(**changes: Any) -> BenchmarkConfig:
    return load_settings(env_file=None, **changes).settings.benchmark


def written(path: Path, body: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return path


def test_without_any_there_is_none(tmp_path: Path) -> None:
    assert find_own_workload(config(), [tmp_path], REGISTRY, {}) is None


@pytest.mark.parametrize("body", [WORKFLOW, {"workflow_json": WORKFLOW}, {"input": {"workflow_json": WORKFLOW}}])
def test_a_file_holds_a_workflow_or_a_request(tmp_path: Path, body: Any) -> None:
    file = written(tmp_path / "mine.json", body)
    found = find_own_workload(config(BENCHMARK_WORKFLOW=str(file)), [], REGISTRY, {})
    assert found is not None and found.workflow == WORKFLOW and found.model.startswith("mine.json#")


def test_the_file_beside_the_base_directory_needs_no_setting(tmp_path: Path) -> None:
    written(tmp_path / "misc" / "benchmark.json", WORKFLOW)
    found = find_own_workload(config(), [tmp_path / "base", tmp_path], REGISTRY, {})
    assert found is not None and found.workflow == WORKFLOW


def requested(path: Path, modifier: str, **modifications: Any) -> BenchmarkConfig:
    body = {"input": {"modifier": modifier, "modifications": modifications}}
    return config(BENCHMARK_WORKFLOW=str(written(path / "request.json", body)))


def test_a_modifier_is_built_with_its_modifications_and_the_only_checkpoint(tmp_path: Path) -> None:
    asked = requested(tmp_path, "Text2Image", steps=40)
    found = find_own_workload(asked, [], REGISTRY, {"only.safetensors": None})
    assert found is not None
    inputs = {name: value for node in found.workflow.values() for name, value in node["inputs"].items()}
    assert (inputs["steps"], inputs["ckpt_name"]) == (40, "only.safetensors")
    assert price_of(PromptWork(found.workflow), {}).cost == pytest.approx(200)
    assert "a fox" in {
        value for node in found.prompt("a fox", Random(1)).values() for value in map(str, node["inputs"].values())
    }


def test_workflows_of_one_name_and_other_content_are_distinguished(tmp_path: Path) -> None:
    models = set()
    for seed in (1, 2):
        file = written(tmp_path / "mine.json", {"1": {"class_type": "Draw", "inputs": {"steps": seed}}})
        found = find_own_workload(config(BENCHMARK_WORKFLOW=str(file)), [], REGISTRY, {})
        assert found is not None
        models.add(found.model)
    assert len(models) == 2


@pytest.mark.parametrize("body", ["{", "[]", "{}", {"nodes": [], "links": []}])
def test_a_file_without_a_workflow_is_named(tmp_path: Path, body: Any) -> None:
    file = written(tmp_path / "mine.json", body)
    with pytest.raises(SettingsInvalid, match=r"BENCHMARK_WORKFLOW.*mine\.json"):
        find_own_workload(config(BENCHMARK_WORKFLOW=str(file)), [], REGISTRY, {})


@pytest.mark.parametrize(("modifier", "said"), [("Nope", "unknown modifier"), ("Image2Image", "input_image")])
def test_a_modifier_that_cannot_be_built_is_named(tmp_path: Path, modifier: str, said: str) -> None:
    with pytest.raises(SettingsInvalid, match=f"BENCHMARK_WORKFLOW.*{said}"):
        find_own_workload(requested(tmp_path, modifier), [], REGISTRY, {})


def test_a_modifier_draws_with_the_defaults_of_the_checkpoints_family(tmp_path: Path) -> None:
    asked = requested(tmp_path, "Text2Image", steps=7)
    found = find_own_workload(asked, [], REGISTRY, {"only.safetensors": LARGE})
    assert found is not None
    inputs = {name: value for node in found.workflow.values() for name, value in node["inputs"].items()}
    assert (inputs["width"], inputs["steps"], inputs["cfg"]) == (LARGE.default.width, 7, LARGE.default.cfg)
