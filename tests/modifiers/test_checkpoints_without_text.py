"""Checkpoints without text encoders: refused by the field that is missing, or used with the files that are given."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import pytest

from darkroom.engine.engine import Engine
from darkroom.engine.families.registry import family_named
from darkroom.engine.formats.safetensors_file import SafetensorsFile, write_safetensors
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.runtime.request import RunRequest
from darkroom.engine.settings import EngineSettings
from darkroom.modifiers.modifier import ModificationsRejected
from darkroom.modifiers.registry import build_registry
from darkroom.worker.engines.families import read_families
from darkroom.worker.prompts.modifier_defaults import parameters_of

WHOLE, ALONE, GEMMA = "whole.safetensors", "alone.safetensors", "gemma.safetensors"
TEXT, PROJECTION = "text_encoders.", "text_encoders.text_embedding_projection.transformer."
SMALL = {"prompt": "a boat", "steps": 1, "seed": 1, "width": 64, "height": 64, "frames": 9}
WITHOUT = {"text_loader": "LTXAVTextEncoderLoader", "text_type": "ltxv", "video_latent": "EmptyLTXVLatentVideo"}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine with a whole checkpoint of LTX-2, and one as it is published, whose language model is a file."""
    base = tmp_path_factory.mktemp("files")
    checkpoints, encoders = base / "models" / "checkpoints", base / "models" / "text_encoders"
    encoders.mkdir(parents=True)
    write_random_checkpoint(checkpoints / WHOLE, family=family_named("ltx2"))
    file = SafetensorsFile(checkpoints / WHOLE)
    tensors = {name: file.tensor(name) for name in file.tensors}
    projection = {name: tensor for name, tensor in tensors.items() if name.startswith(PROJECTION)}
    language = {name: tensor for name, tensor in tensors.items() if name.startswith(TEXT) and name not in projection}
    rest = {name: tensor for name, tensor in tensors.items() if not name.startswith(TEXT)}
    rest |= {name.removeprefix(TEXT).replace("transformer.", ""): tensor for name, tensor in projection.items()}
    write_safetensors(checkpoints / ALONE, rest, file.metadata)
    prefix = f"{TEXT}gemma3_12b.transformer."
    own = {name.removeprefix(prefix).removeprefix(TEXT): tensor for name, tensor in language.items()}
    write_safetensors(encoders / GEMMA, own)
    with Engine(EngineSettings(base_directory=base, cpu=True)) as running:
        yield running


def build(engine: Engine, checkpoint: str, modifications: Mapping[str, Any]) -> dict[str, Any]:
    """Return the prompt of a modifier, by the facts that the front has of a checkpoint from the engine."""
    described = json.loads(json.dumps(engine.file_families.families()))
    (file,) = json.loads(
        json.dumps([asdict(item) for item in engine.file_families.describe("checkpoints", [checkpoint])])
    )
    family = next(item for item in read_families(described) if item.name == file["family"])
    given = {**SMALL, "ckpt_name": checkpoint, **modifications}
    return build_registry().build("Text2Video", given, {}, parameters_of(family.with_text(file["has_text"])))


@pytest.mark.parametrize(
    ("checkpoint", "given", "loader"),
    [(WHOLE, {}, None), (ALONE, {"clip_names": GEMMA}, "LTXAVTextEncoderLoader")],
)
def test_a_video_is_drawn_with_the_text_encoder_that_is_there(
    engine: Engine, checkpoint: str, given: dict[str, Any], loader: str | None
) -> None:
    prompt = build(engine, checkpoint, given)
    assert (prompt["text_encoders"]["class_type"] if "text_encoders" in prompt else None) == loader
    checked = engine.check(prompt)
    assert not checked.node_problems
    done = engine.submit(RunRequest("p", checked.prompt, checked.outputs), lambda event: None).result(60)
    assert done.status == "success"


def test_a_checkpoint_without_text_encoders_is_refused_by_the_field_that_is_missing(engine: Engine) -> None:
    with pytest.raises(ModificationsRejected) as caught:
        build(engine, ALONE, {})
    (problem,) = caught.value.problems
    assert problem["field"] == "clip_names" and "no text encoder of its own" in problem["message"]


def test_a_prompt_that_encodes_no_text_needs_no_text_encoder() -> None:
    given = {"input_image": "a.png", "ckpt_name": "m.safetensors"}
    prompt = build_registry().build("Upscale", given, {}, {"has_text": False})
    assert set(prompt) == {"9", "10", "21"}
    with pytest.raises(ModificationsRejected):
        build_registry().build("Upscale", given | {"method": "latent"}, {}, {"has_text": False})


def test_a_network_in_a_file_of_its_own_needs_the_projection_too() -> None:
    files = {"prompt": "x", "unet_name": "n.safetensors", "vae_name": "v.safetensors"}
    with pytest.raises(ModificationsRejected) as caught:
        build_registry().build("Text2Video", {**files, "clip_names": [GEMMA]}, {}, WITHOUT)
    (problem,) = caught.value.problems
    assert problem["field"] == "clip_names" and "must be two files" in problem["message"]
    prompt = build_registry().build("Text2Video", {**files, "clip_names": [GEMMA, "p.safetensors"]}, {}, WITHOUT)
    assert prompt["text_encoders"]["class_type"] == "DualCLIPLoader"


def test_problems_of_the_loader_are_reported_of_their_fields() -> None:
    modifier = build_registry().get("Text2Video")
    assert modifier.field_at("text_encoders", "text_encoder") == "clip_names"
    assert modifier.field_at("text_encoders", "ckpt_name") == "ckpt_name"
