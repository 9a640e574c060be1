"""The modifier Edit: its graph by the family of the checkpoint, with one to three images, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from darkroom.engine.engine import Engine
from darkroom.engine.families.registry import family_named
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.runtime.request import RunRequest
from darkroom.engine.settings import EngineSettings
from darkroom.modifiers.edit import Edit
from darkroom.modifiers.modifier import ModificationsRejected
from darkroom.modifiers.registry import ModifierRegistry, build_registry
from darkroom.worker.engines.families import read_families
from darkroom.worker.prompts.modifier_defaults import parameters_of

ONE = {"prompt": "make it winter", "input_image": "a.png", "ckpt_name": "m.safetensors", "seed": 1}
THREE = {**ONE, "input_image_2": "b.png", "input_image_3": "c.png"}


@pytest.fixture(scope="module")
def registry() -> ModifierRegistry:
    return build_registry()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An engine with a checkpoint and images of the names that the prompts have."""
    base: Path = tmp_path_factory.mktemp("edit")
    for folder in ("models/checkpoints", "input"):
        (base / folder).mkdir(parents=True)
    write_random_checkpoint(base / "models" / "checkpoints" / "m.safetensors")
    for name in ("a.png", "b.png", "c.png"):
        Image.new("RGB", (16, 16)).save(base / "input" / name)
    with Engine(EngineSettings(base_directory=base, cpu=True)) as running:
        yield running


def family(engine: Engine, name: str) -> Any:
    """The default parameters of a family, as the front has them from the engine."""
    found = {item.name: item for item in read_families(engine.file_families.families())}
    return parameters_of(found[name])


def classes(prompt: dict[str, Any]) -> list[str]:
    return sorted(node["class_type"] for node in prompt.values())


@pytest.mark.parametrize(("modifications", "num_images"), [(ONE, 1), (THREE, 3)])
def test_qwens_text_encoder_sees_the_images(
    registry: ModifierRegistry, engine: Engine, modifications: dict[str, Any], num_images: int
) -> None:
    prompt = registry.build("Edit", modifications, family=family(engine, "qwen_image"))
    assert not engine.check(prompt).node_problems
    assert classes(prompt).count("LoadImage") == num_images and "ReferenceLatent" not in classes(prompt)
    encoders = [node["inputs"] for node in prompt.values() if node["class_type"] == "TextEncodeQwenImageEditPlus"]
    assert [sum(name.startswith("image") for name in inputs) for inputs in encoders] == [num_images] * 2
    assert {inputs["prompt"] for inputs in encoders} == {"make it winter", ""}
    sampler = prompt["3"]["inputs"]
    assert (sampler["cfg"], sampler["scheduler"], prompt["14"]["inputs"]["shift"]) == (2.5, "simple", 3.0)


@pytest.mark.parametrize(("modifications", "num_images"), [(ONE, 1), (THREE, 3)])
def test_kontext_sees_the_latents_of_the_images(
    registry: ModifierRegistry, engine: Engine, modifications: dict[str, Any], num_images: int
) -> None:
    prompt = registry.build("Edit", modifications, family=family(engine, "flux"))
    assert not engine.check(prompt).node_problems
    assert classes(prompt).count("ReferenceLatent") == classes(prompt).count("LoadImage") == num_images
    assert "TextEncodeQwenImageEditPlus" not in classes(prompt) and prompt["3"]["inputs"]["cfg"] == 1.0
    seen, node_id = [], prompt["17"]["inputs"]["conditioning"][0]
    while prompt[node_id]["class_type"] == "ReferenceLatent":
        seen.append(prompt[node_id]["inputs"]["latent"][0])
        node_id = prompt[node_id]["inputs"]["conditioning"][0]
    assert seen == ["32", "22", "12"][3 - num_images :] and prompt[node_id]["inputs"]["text"] == "make it winter"


def test_the_third_image_may_be_given_without_the_second(registry: ModifierRegistry, engine: Engine) -> None:
    given = {**ONE, "input_image_3": "c.png"}
    for name in ("qwen_image", "flux"):
        prompt = registry.build("Edit", given, family=family(engine, name))
        assert not engine.check(prompt).node_problems
        assert sorted(node["inputs"]["image"] for node in prompt.values() if node["class_type"] == "LoadImage") == [
            "a.png",
            "c.png",
        ]


SIXTEEN = {**THREE, "further_images": ["a.png", "b.png", "c.png"] * 4 + ["a.png"]}


@pytest.mark.parametrize(
    ("modifications", "shown"),
    [
        (ONE, ["a.png"]),
        (THREE, ["a.png", "b.png", "c.png"]),
        (SIXTEEN, ["a.png", "b.png", "c.png"] * 5 + ["a.png"]),
        ({**ONE, "further_images": ["c.png", "b.png"]}, ["a.png", "c.png", "b.png"]),
    ],
)
def test_images_between_the_words_come_in_their_order(
    registry: ModifierRegistry, engine: Engine, modifications: dict[str, Any], shown: list[str]
) -> None:
    given = {**modifications, "negative_prompt": "blur"}
    prompt = registry.build("Edit", given, family=family(engine, "qwen_image21"))
    assert not engine.check(prompt).node_problems
    (encoder,) = (node["inputs"] for node in prompt.values() if node["class_type"] == "TextEncodeQwenImage21")
    assert (encoder["prompt"], encoder["negative_prompt"], encoder["resolution"]) == ("make it winter", "blur", 1024)
    links = [encoder[f"images.image_{place}"] for place in range(1, len(shown) + 1)]
    assert [prompt[node_id]["inputs"]["image"] for node_id, _ in links] == shown
    assert sum(name.startswith("images.") for name in encoder) == len(shown) == classes(prompt).count("LoadImage")
    sampler = prompt["3"]["inputs"]
    assert [sampler[name] for name in ("model", "positive", "negative", "latent_image")] == [
        ["41", 0], ["40", 0], ["40", 1], ["40", 2],
    ]  # fmt: skip
    assert (sampler["steps"], sampler["cfg"], sampler["scheduler"]) == (25, 1.0, "simple")


@pytest.mark.parametrize(("name", "method"), [("qwen_image", "encoder"), ("flux", "references")])
def test_more_than_three_images_are_refused_where_the_method_takes_three(
    registry: ModifierRegistry, engine: Engine, name: str, method: str
) -> None:
    with pytest.raises(ModificationsRejected) as caught:
        registry.build("Edit", SIXTEEN, family=family(engine, name))
    (problem,) = caught.value.problems
    assert problem["field"] == "further_images"
    assert problem["message"] == f"too many images for the method `{method}`; got 16, expected at most 3"


def test_more_than_sixteen_images_are_refused(registry: ModifierRegistry, engine: Engine) -> None:
    with pytest.raises(ModificationsRejected) as caught:
        registry.build("Edit", {**ONE, "further_images": ["b.png"] * 16}, family=family(engine, "qwen_image21"))
    (problem,) = caught.value.problems
    assert problem["field"] == "further_images" and problem["allowed"]["anyOf"][0]["maxItems"] == 13


def test_a_missing_further_image_is_named_by_its_place(registry: ModifierRegistry, engine: Engine) -> None:
    given = {**ONE, "further_images": ["b.png", "none.png"]}
    prompt = registry.build("Edit", given, family=family(engine, "qwen_image21"))
    (node_id,) = engine.checks.find_problems(prompt).node_problems
    assert Edit.field_at(node_id, "image") == "further_images.1"
    assert Edit.field_at("10", "image") == "input_image"


def test_the_network_is_given_the_images(registry: ModifierRegistry, tmp_path: Path) -> None:
    """Small random networks draw another image for another reference, order or instruction, and the same again."""
    for folder in ("models/checkpoints", "input"):
        (tmp_path / folder).mkdir(parents=True)
    write_random_checkpoint(tmp_path / "models" / "checkpoints" / "m.safetensors", family=family_named("qwen_image21"))
    generator = np.random.default_rng(1)
    for name in ("a.png", "b.png"):
        image = generator.integers(0, 255, (48, 80, 3), dtype=np.uint8)
        Image.fromarray(image).save(tmp_path / "input" / name)
    images: list[bytes] = []
    with Engine(EngineSettings(base_directory=tmp_path, cpu=True)) as engine:
        for changed in (
            {},
            {"input_image": "b.png"},
            {"further_images": ["b.png"]},
            {"input_image": "b.png", "further_images": ["a.png"]},
            {"prompt": "make it summer"},
            {},
        ):
            prompt = registry.build("Edit", {**ONE, "steps": 2, **changed}, family=family(engine, "qwen_image21"))
            prompt["40"]["inputs"]["resolution"] = 64
            prompt["9"]["inputs"]["filename_prefix"] = f"p{len(images)}"
            request = RunRequest(f"p{len(images)}", prompt, engine.check(prompt).outputs, {})
            assert engine.submit(request, lambda event: None).result().status == "success"
            (file,) = (tmp_path / "output").glob(f"p{len(images)}_*.png")
            with Image.open(file) as opened:
                assert opened.size == (96, 64)  # of the area of 64 x 64, in steps of 32
                images.append(opened.tobytes())
    assert images[0] == images[-1]
    assert len(set(images)) == len(images) - 1


@pytest.mark.parametrize("name", ["sd15", "sdxl"])
def test_a_checkpoint_that_edits_nothing_is_refused(registry: ModifierRegistry, engine: Engine, name: str) -> None:
    with pytest.raises(ModificationsRejected) as caught:
        registry.build("Edit", ONE, family=family(engine, name))
    (problem,) = caught.value.problems
    assert problem["field"] == "ckpt_name" and "edits images by an instruction" in problem["message"]


def test_the_method_may_be_given_where_the_family_is_not_known(registry: ModifierRegistry) -> None:
    prompt = registry.build("Edit", {**ONE, "edit_method": "references"})
    assert "ReferenceLatent" in classes(prompt)
    with pytest.raises(ModificationsRejected) as caught:
        registry.build("Edit", {**ONE, "edit_method": "magic"})
    assert caught.value.problems[0]["field"] == "edit_method"
