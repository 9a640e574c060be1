"""Families as the front reads them from an engine's description, and the model files that a prompt names."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.contract.graph.prompt_graph import ModelFile, model_files_in
from darkroom.worker.engines.families import Family, ImageDefaults, read_families

PLAIN = Family("plain", ImageDefaults(512, 512, 20, 7.5, "euler", "normal"), is_default=True)
LARGE = Family("large", ImageDefaults(1024, 1024, 25, 6.0, "dpmpp_2m", "karras"), pixel_cost=2.0)


def described(family: Family, cost: Any = 1.0) -> dict[str, Any]:
    return {"name": family.name, "label": family.name.title(), "default": {**family.default.as_json(), "cost": cost}}


def test_the_first_family_is_the_default_and_costs_are_relative_to_it() -> None:
    assert read_families([described(PLAIN), described(LARGE, cost=10.0)]) == (PLAIN, LARGE)  # 4 x 1.25 x 2


def test_a_family_that_draws_without_guidance_costs_more_for_each_pass() -> None:
    fast = described(LARGE, cost=10.0)
    fast["default"]["cfg"] = 1.0
    assert read_families([described(PLAIN), fast])[1].pixel_cost == pytest.approx(4.0)


@pytest.mark.parametrize("answer", [None, {}, "no", [], [1], [{"name": "x"}], {"error": "no such page"}])
def test_an_engine_that_describes_no_families_has_none(answer: Any) -> None:
    assert read_families(answer) == ()


@pytest.mark.parametrize("wrong", [{}, None, {"width": 0}, {"width": "wide"}])
def test_a_family_that_is_not_understood_is_left_out(wrong: Any) -> None:
    broken = described(LARGE)
    broken["default"] = wrong if not wrong else {**broken["default"], **wrong}
    assert read_families([described(PLAIN), broken]) == (PLAIN,)


@pytest.mark.parametrize("cost", [None, 0, -1, "much", float("inf")])
def test_a_senseless_cost_counts_as_one_image_of_the_default_family(cost: Any) -> None:
    assert read_families([described(PLAIN), described(LARGE, cost)])[1].pixel_cost == pytest.approx(0.2)


def test_each_model_file_of_a_prompt_is_found_once() -> None:
    prompt = {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "a.safetensors"}},
        "2": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "a.safetensors"}},
        "3": {"class_type": "UNETLoader", "inputs": {"unet_name": "b.safetensors", "weight_dtype": "default"}},
        "4": {"class_type": "DarkroomRandomCheckpoint", "inputs": {"family": "large", "scale": "small"}},
        "5": {"class_type": "Odd", "inputs": {"ckpt_name": ["1", 0], "unet_name": ""}},
        "6": {"class_type": "Bare"},
        "7": None,
    }
    assert model_files_in(prompt) == [
        ModelFile("checkpoints", "a.safetensors"),
        ModelFile("diffusion_models", "b.safetensors"),
        ModelFile("family", "large"),
    ]
