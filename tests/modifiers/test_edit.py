"""The modifier Edit: its graph by the family of the checkpoint, with one to three pictures, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from engine.engine import Engine
from engine.settings import EngineSettings
from modifiers.modifier import ModificationsRejected
from modifiers.registry import ModifierRegistry, build_registry
from worker.engines.families import read_families
from worker.modifier_defaults import parameters_of

ONE = {"prompt": "make it winter", "input_image": "a.png", "ckpt_name": "m.safetensors", "seed": 1}
THREE = {**ONE, "input_image_2": "b.png", "input_image_3": "c.png"}


@pytest.fixture(scope="module")
def registry() -> ModifierRegistry:
    return build_registry()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An engine with a checkpoint and pictures of the names that the prompts have."""
    base: Path = tmp_path_factory.mktemp("edit")
    for folder in ("models/checkpoints", "input"):
        (base / folder).mkdir(parents=True)
    save_file({"weight": np.zeros(1, np.float32)}, base / "models" / "checkpoints" / "m.safetensors")
    for name in ("a.png", "b.png", "c.png"):
        Image.new("RGB", (16, 16)).save(base / "input" / name)
    with Engine(EngineSettings(base_directory=base, cpu=True)) as running:
        yield running


def family(engine: Engine, name: str) -> Any:
    """The default parameters of a family, as the front has them from the engine."""
    found = {item.name: item for item in read_families(engine.families())}
    return parameters_of(found[name])


def classes(prompt: dict[str, Any]) -> list[str]:
    return sorted(node["class_type"] for node in prompt.values())


@pytest.mark.parametrize(("modifications", "num_pictures"), [(ONE, 1), (THREE, 3)])
def test_qwens_text_encoder_sees_the_pictures(
    registry: ModifierRegistry, engine: Engine, modifications: dict[str, Any], num_pictures: int
) -> None:
    prompt = registry.build("Edit", modifications, family=family(engine, "qwen_image"))
    assert not engine.check(prompt).node_problems
    assert classes(prompt).count("LoadImage") == num_pictures and "ReferenceLatent" not in classes(prompt)
    encoders = [node["inputs"] for node in prompt.values() if node["class_type"] == "TextEncodeQwenImageEditPlus"]
    assert [sum(name.startswith("image") for name in inputs) for inputs in encoders] == [num_pictures] * 2
    assert {inputs["prompt"] for inputs in encoders} == {"make it winter", ""}
    sampler = prompt["3"]["inputs"]
    assert (sampler["cfg"], sampler["scheduler"], prompt["14"]["inputs"]["shift"]) == (2.5, "simple", 3.0)


@pytest.mark.parametrize(("modifications", "num_pictures"), [(ONE, 1), (THREE, 3)])
def test_kontext_sees_the_latents_of_the_pictures(
    registry: ModifierRegistry, engine: Engine, modifications: dict[str, Any], num_pictures: int
) -> None:
    prompt = registry.build("Edit", modifications, family=family(engine, "flux"))
    assert not engine.check(prompt).node_problems
    assert classes(prompt).count("ReferenceLatent") == classes(prompt).count("LoadImage") == num_pictures
    assert "TextEncodeQwenImageEditPlus" not in classes(prompt) and prompt["3"]["inputs"]["cfg"] == 1.0
    seen, node_id = [], prompt["17"]["inputs"]["conditioning"][0]
    while prompt[node_id]["class_type"] == "ReferenceLatent":
        seen.append(prompt[node_id]["inputs"]["latent"][0])
        node_id = prompt[node_id]["inputs"]["conditioning"][0]
    assert seen == ["32", "22", "12"][3 - num_pictures :] and prompt[node_id]["inputs"]["text"] == "make it winter"


def test_the_third_picture_may_be_given_without_the_second(registry: ModifierRegistry, engine: Engine) -> None:
    given = {**ONE, "input_image_3": "c.png"}
    for name in ("qwen_image", "flux"):
        prompt = registry.build("Edit", given, family=family(engine, name))
        assert not engine.check(prompt).node_problems
        assert sorted(node["inputs"]["image"] for node in prompt.values() if node["class_type"] == "LoadImage") == [
            "a.png",
            "c.png",
        ]


@pytest.mark.parametrize("name", ["sd15", "sdxl"])
def test_a_checkpoint_that_edits_nothing_is_refused(registry: ModifierRegistry, engine: Engine, name: str) -> None:
    with pytest.raises(ModificationsRejected) as caught:
        registry.build("Edit", ONE, family=family(engine, name))
    (problem,) = caught.value.problems
    assert problem["field"] == "ckpt_name" and "edits pictures by an instruction" in problem["message"]


def test_the_method_may_be_given_where_the_family_is_not_known(registry: ModifierRegistry) -> None:
    prompt = registry.build("Edit", {**ONE, "edit_method": "references"})
    assert "ReferenceLatent" in classes(prompt)
    with pytest.raises(ModificationsRejected) as caught:
        registry.build("Edit", {**ONE, "edit_method": "magic"})
    assert caught.value.problems[0]["field"] == "edit_method"
