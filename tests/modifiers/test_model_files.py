"""Models of separate files, shifts and guidance: what modifiers make of them for each family, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from darkroom.engine.engine import Engine
from darkroom.engine.families.base import TensorIndex
from darkroom.engine.families.registry import families, family_named
from darkroom.engine.runtime.request import RunRequest
from darkroom.engine.settings import EngineSettings
from darkroom.modifiers.modifier import ModificationsRejected
from darkroom.modifiers.registry import MODIFIERS, ModifierRegistry, build_registry
from darkroom.worker.engines.families import Family, read_families
from darkroom.worker.prompts.modifier_defaults import parameters_of
from tests.parity.models import write_models_of
from tests.parity.recorded import Case

SMALL = {"seed": 1, "steps": 1, "prompt": "a lighthouse"}
IMAGE = {"input_image": "photo.png", "mask_image": "mask.png"}


@pytest.fixture(scope="module")
def registry() -> ModifierRegistry:
    return build_registry()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    base: Path = tmp_path_factory.mktemp("files")
    (base / "input").mkdir()
    for name in ("photo.png", "mask.png"):
        Image.new("RGB", (64, 64), "white").save(base / "input" / name)
    with Engine(EngineSettings(base_directory=base, cpu=True)) as running:
        yield running


def known(engine: Engine) -> dict[str, Family]:
    """The families, as the front has them from the engine."""
    described = json.loads(json.dumps(engine.file_families.families()))
    return {item.name: item for item in read_families(described)}


def build(engine: Engine, name: str, modifications: dict[str, Any], family: str, variant: str = "") -> dict[str, Any]:
    defaults = parameters_of(known(engine)[family].variant(variant))
    return build_registry().build(name, modifications, family=defaults)


def problems(name: str, modifications: dict[str, Any], family: Mapping[str, Any] | None = None) -> dict[str, str]:
    with pytest.raises(ModificationsRejected) as caught:
        build_registry().build(name, modifications, family=family)
    return {problem["field"]: problem["message"] for problem in caught.value.problems}


def classes(prompt: Mapping[str, Any]) -> list[str]:
    return [node["class_type"] for node in prompt.values()]


def links_into(prompt: Mapping[str, Any], class_type: str) -> set[str]:
    """The classes of the nodes that feed the nodes of a class."""
    nodes = [node for node in prompt.values() if node["class_type"] == class_type]
    links = [value for node in nodes for value in node["inputs"].values() if isinstance(value, list)]
    return {prompt[link[0]]["class_type"] for link in links}


@pytest.mark.parametrize(
    ("family", "num_encoders", "loader", "shift"),
    [
        ("flux", 2, "DualCLIPLoader", None),
        ("qwen_image", 1, "CLIPLoader", ("ModelSamplingAuraFlow", 3.1)),
        ("z_image", 1, "CLIPLoader", None),
        ("sd3", 3, "TripleCLIPLoader", None),
        ("hidream", 4, "QuadrupleCLIPLoader", ("ModelSamplingSD3", 6.0)),
    ],
)
@pytest.mark.parametrize("name", ["Text2Image", "LoraText2Image", "HiresFix"])
def test_a_model_is_loaded_from_its_files(
    engine: Engine, name: str, family: str, num_encoders: int, loader: str, shift: tuple[str, float] | None
) -> None:
    files = [f"encoder_{index}.safetensors" for index in range(num_encoders)]
    given = {"prompt": "x", "unet_name": "net.safetensors", "clip_names": files, "vae_name": "vae.safetensors"}
    if name == "LoraText2Image":
        given["loras"] = "style.safetensors"
    prompt = build(engine, name, given, family)
    assert "CheckpointLoaderSimple" not in classes(prompt)
    assert prompt["4"] == {
        "class_type": "UNETLoader",
        "inputs": {"unet_name": "net.safetensors", "weight_dtype": "default"},
        "_meta": {"title": "Network"},
    }
    text = prompt["text_encoders"]
    assert text["class_type"] == loader
    assert [value for key, value in text["inputs"].items() if key.startswith("clip_name")] == files
    named = known(engine)[family].default
    assert text["inputs"].get("type") == (named.text_type if num_encoders < 3 else None)
    assert {"VAELoader", "KSampler"} <= links_into(prompt, "VAEDecode")
    source = "UNETLoader" if shift is None else shift[0]
    assert source in links_into(prompt, "LoraLoader" if name == "LoraText2Image" else "KSampler")
    assert ([(prompt["shift"]["class_type"], prompt["shift"]["inputs"]["shift"])] if shift else []) == (
        [shift] if shift else []
    )
    sampler = prompt["3"]["inputs"]
    assert (sampler["steps"], sampler["cfg"], sampler["sampler_name"], sampler["scheduler"]) == (
        named.steps, named.cfg, named.sampler_name, named.scheduler,
    )  # fmt: skip
    assert prompt["5"]["inputs"]["width"] == named.width


def test_packed_files_are_loaded_by_the_nodes_that_read_them(engine: Engine) -> None:
    given = {"prompt": "x", "unet_name": "n.gguf", "clip_names": ["l.safetensors", "t5.GGUF"], "vae_name": "v.sft"}
    prompt = build(engine, "Text2Image", given, "flux")
    assert {"UnetLoaderGGUF", "DualCLIPLoaderGGUF", "VAELoader"} <= set(classes(prompt))
    assert prompt["4"]["inputs"] == {"unet_name": "n.gguf"}


@pytest.mark.parametrize("family", ["flux", "qwen_image"])
def test_an_image_is_edited_by_a_model_of_separate_files(engine: Engine, family: str) -> None:
    given = {"prompt": "x", "input_image": "a.png", "unet_name": "n", "clip_names": "t", "vae_name": "v"}
    prompt = build(engine, "Edit", given, family)
    assert "VAELoader" in links_into(prompt, "VAEEncode") and "UNETLoader" in classes(prompt)
    encoder = "TextEncodeQwenImageEditPlus" if family == "qwen_image" else "CLIPTextEncode"
    assert "CLIPLoader" in links_into(prompt, encoder)


def test_a_vae_alone_takes_the_place_of_the_checkpoints(engine: Engine) -> None:
    prompt = build(engine, "Text2Image", {"prompt": "x", "vae_name": "v.safetensors"}, "sdxl")
    assert links_into(prompt, "VAEDecode") == {"KSampler", "VAELoader"}
    assert "CheckpointLoaderSimple" in links_into(prompt, "CLIPTextEncode")


@pytest.mark.parametrize("name", [item.__name__ for item in MODIFIERS if "unet_name" in item.model_fields])
def test_a_network_without_its_other_files_is_refused_by_the_fields_that_are_missing(name: str) -> None:
    found = problems(name, {"unet_name": "n.safetensors"})
    beside = "is required with `unet_name`"
    assert (found["clip_names"], found["vae_name"]) == (beside, beside)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"clip_names": ["a"] * 5}, "clip_names"),
        ({"clip_names": []}, "clip_names"),
        ({"clip_names": [""]}, "clip_names.0"),
        ({"clip_names": ["a"]}, "clip_type"),
        ({"unet_name": ""}, "unet_name"),
        ({"shift": 3}, "shift"),
        ({"shift": -1, "shift_by": "ModelSamplingSD3"}, "shift"),
        ({"shift": True, "shift_by": "ModelSamplingSD3"}, "shift"),
        ({"shift_by": "KSampler"}, "shift_by"),
        ({"guidance": 101}, "guidance"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_field(given: dict[str, Any], field: str) -> None:
    assert list(problems("Text2Image", {"prompt": "x", **given})) == [field]


def test_noise_levels_of_a_family_that_is_no_flow_are_not_shifted(engine: Engine) -> None:
    found = problems("Text2Image", {"prompt": "x", "shift": 3}, parameters_of(known(engine)["sdxl"]))
    assert "not shifted" in found["shift"]


@pytest.mark.parametrize(("name", "field"), [("unet_name", "unet_name"), ("vae_name", "vae_name")])
def test_a_problem_of_the_graph_is_reported_of_the_field(registry: ModifierRegistry, name: str, field: str) -> None:
    modifier = registry.get("Text2Image")
    places = {"unet_name": "4", "vae_name": "vae"}
    assert modifier.field_at(places[name], name) == field
    assert modifier.field_at("text_encoders", "clip_name2") == "clip_names"
    assert modifier.field_at("text_encoders", "type") == "clip_type"
    assert modifier.field_at("shift", "shift") == "shift"


@pytest.mark.parametrize("family", [item.name for item in families() if "inpaint" in item.variant_defaults])
def test_a_network_that_paints_is_shown_the_mask(engine: Engine, family: str) -> None:
    given = {"prompt": "x", "ckpt_name": "m.safetensors", **IMAGE}
    painted, plain = build(engine, "Inpaint", given, family, "inpaint"), build(engine, "Inpaint", given, family)
    assert "InpaintModelConditioning" in links_into(painted, "KSampler") and "SetLatentNoiseMask" not in classes(
        painted
    )
    assert "InpaintModelConditioning" not in classes(plain)
    guided = [node["inputs"]["guidance"] for node in painted.values() if node["class_type"] == "FluxGuidance"]
    assert guided == ([30.0] if family == "flux" else [])


@pytest.mark.parametrize(("in_channels", "variant"), [(16, ""), (32, ""), (96, "inpaint")])
def test_a_network_that_paints_is_told_by_its_first_layer(in_channels: int, variant: str) -> None:
    flux = family_named("flux")
    with torch.device("meta"):
        network = flux.denoiser.build(replace(flux.scales["small"].denoiser, in_channels=in_channels))
    shapes = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    found = flux.detect(TensorIndex(shapes))
    assert found is not None and found.variant == variant


@pytest.mark.slow
def test_fill_paints_from_its_files(engine: Engine) -> None:
    """The family, its variant and the type of the text encoders are those that the engine reads from the file."""
    text = Case("flux", "flux_fill_inpaint").text
    write_models_of(text, engine.settings.models_path)
    case = {node["class_type"]: node["inputs"] for node in json.loads(text).values()}
    network = case["UNETLoader"]["unet_name"]
    (file,) = engine.file_families.describe("diffusion_models", [network])
    assert (file.family, file.variant) == ("flux", "inpaint")
    given = {
        **SMALL,
        **IMAGE,
        "unet_name": network,
        "clip_names": [case["DualCLIPLoader"]["clip_name1"], case["DualCLIPLoader"]["clip_name2"]],
        "vae_name": case["VAELoader"]["vae_name"],
    }
    prompt = build(engine, "Inpaint", given, "flux", file.variant)
    checked = engine.check(prompt)
    assert not checked.node_problems
    assert engine.submit(RunRequest("p", checked.prompt, checked.outputs), lambda event: None).result(60).status == (
        "success"
    )
