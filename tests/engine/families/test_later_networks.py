"""Networks that ComfyUI has and this engine has not: refused by their own names before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from darkroom.contract.errors import PromptRejected
from darkroom.engine.engine import Engine
from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.base import ModelFamily, NotRecognised, Shapes, TensorIndex
from darkroom.engine.families.later_networks import LATER_NETWORKS, LATER_PARTS, PREFIXES, LaterNetwork, later_network
from darkroom.engine.families.unsupported import describe
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.models.files.faults import fault_of_file
from darkroom.engine.models.load import LoadTypes, load_checkpoint, load_unet
from darkroom.engine.settings import EngineSettings
from tests.parity.layout import checkpoint_shapes
from tests.parity.public_files import public_files

CHECKPOINT = "model.diffusion_model."
# A family that a network's layers are like -> the network, the tensors that it has beside them, those that it lacks.
NEIGHBOURS: Mapping[str, tuple[str, Mapping[str, tuple[int, ...]], tuple[str, ...]]] = {
    "flux": ("Ovis-Image", {"double_blocks.0.img_mlp.gate_proj.weight": (8, 8)}, ("vector_in.in_layer.weight",)),
    "lumina2": ("NewBie", {"clip_text_pooled_proj.0.weight": (8,)}, ()),
    "z_image": ("Ming-Image", {"__ming_image__": (1,)}, ()),
}

ALL = (*LATER_NETWORKS, *LATER_PARTS)
each_network = pytest.mark.parametrize("network", ALL, ids=lambda network: network.label)


def label_of(shapes: Shapes, metadata: Mapping[str, str]) -> str | None:
    """The name of the network that the engine lacks, None for a file without one."""
    found = later_network(shapes, metadata)
    return None if found is None else found.label


def metadata_of(network: LaterNetwork) -> dict[str, str]:
    """The metadata that the network is known by."""
    return {"config": json.dumps({"transformer": {"model_type": "another"}})} if network.types else {}


def tensors_of(network: LaterNetwork, prefix: str) -> dict[str, tuple[int, ...]]:
    """The tensors that the network is known by, behind a prefix."""
    shapes: dict[str, tuple[int, ...]] = {prefix + name: (4, 4) for name in network.has}
    for name, (axis, length) in network.sizes.items():
        shapes[prefix + name] = tuple(length if index == axis else 4 for index in range(2))
    return shapes


@each_network
@pytest.mark.parametrize("prefix", PREFIXES)
def test_it_is_named_behind_every_prefix(network: LaterNetwork, prefix: str) -> None:
    shapes, metadata = tensors_of(network, prefix), metadata_of(network)
    assert label_of(shapes, metadata) == network.label
    with pytest.raises(NotRecognised, match="a family that this engine does not have") as refused:
        registry.recognise(TensorIndex(shapes, metadata))
    assert refused.value.found.startswith(f"{network.part} of {network.label}, ")
    assert describe(shapes, metadata) == refused.value.found


@each_network
def test_it_is_not_named_without_one_of_its_tensors(network: LaterNetwork) -> None:
    shapes, metadata = tensors_of(network, ""), metadata_of(network)
    for name in shapes:
        rest = {other: shape for other, shape in shapes.items() if other != name}
        assert label_of(rest, metadata) != network.label
    for name in network.lacks:
        assert label_of({**shapes, name: (4, 4)}, metadata) != network.label
    for name, (axis, length) in network.sizes.items():
        other = tuple(length + 1 if index == axis else 4 for index in range(2))
        assert label_of({**shapes, name: other}, metadata) != network.label
    for known in network.types:
        assert label_of(shapes, {"config": json.dumps({"transformer": {"model_type": known}})}) != network.label
    assert not network.types or label_of(shapes, {}) != network.label


@pytest.mark.parametrize("part", LATER_PARTS, ids=lambda part: part.label)
def test_a_part_is_named_in_the_folder_of_vaes_and_of_text_encoders(part: LaterNetwork) -> None:
    shapes = tensors_of(part, "")
    with pytest.raises(NotRecognised, match=part.label):
        registry.recognise_vae(shapes)
    with pytest.raises(NotRecognised, match=part.label):
        registry.check_text_encoder(shapes)


@pytest.mark.parametrize("network", LATER_NETWORKS, ids=lambda network: network.label)
def test_a_network_is_named_in_the_folders_of_vaes_and_of_text_encoders_too(network: LaterNetwork) -> None:
    shapes, metadata = tensors_of(network, ""), metadata_of(network)
    with pytest.raises(NotRecognised, match=network.label):
        registry.recognise_vae(shapes, metadata)
    with pytest.raises(NotRecognised, match=network.label):
        registry.check_text_encoder(shapes, metadata)
    with pytest.raises(NotRecognised, match=f"; .*{network.label}"):
        registry.recognise_text_encoders([{"a": (1,)}, shapes], "sdxl", [{}, metadata])


@pytest.mark.parametrize("kind", ["vae", "text_encoders", "diffusion_models"])
def test_a_file_known_by_its_metadata_is_named_in_every_folder(tmp_path: Path, kind: str) -> None:
    network = next(item for item in LATER_NETWORKS if item.types)
    path = tmp_path / "f.safetensors"
    tensors = {name: torch.zeros(shape) for name, shape in tensors_of(network, "").items()}
    write_safetensors(path, tensors, metadata_of(network))
    assert f"a network of {network.label}" in str(fault_of_file(path, kind))


@pytest.mark.parametrize("family", registry.families(), ids=lambda family: family.name)
@pytest.mark.parametrize("scale", ["small", pytest.param("full", marks=pytest.mark.slow)])
def test_no_family_of_the_engine_is_taken_for_one(family: ModelFamily, scale: str) -> None:
    assert later_network(checkpoint_shapes(family, scale)) is None


def test_no_published_file_of_a_family_is_taken_for_one() -> None:
    named = {name: label_of(shapes, {}) for name, shapes in public_files().items()}
    assert {name: label for name, label in named.items() if label is not None} == {}


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_a_network_with_the_layers_of_a_family_is_not_taken_for_it(neighbour: str) -> None:
    label, added, lacking = NEIGHBOURS[neighbour]
    shapes: dict[str, tuple[int, ...]] = dict(checkpoint_shapes(registry.family_named(neighbour), "small"))
    prefix = next(prefix for prefix in PREFIXES if any(name.startswith(prefix) for name in shapes))
    shapes |= {prefix + name: shape for name, shape in added.items()}
    shapes = {name: shape for name, shape in shapes.items() if name.removeprefix(prefix) not in lacking}
    with pytest.raises(NotRecognised, match=label):
        registry.recognise(TensorIndex(shapes))


def file_of(path: Path, shapes: Shapes) -> Path:
    write_safetensors(path, {name: torch.zeros(shape) for name, shape in shapes.items()})
    return path


@pytest.mark.parametrize(("kind", "node", "name"), [
    ("checkpoints", "CheckpointLoaderSimple", "ckpt_name"), ("diffusion_models", "UNETLoader", "unet_name"),
])  # fmt: skip
def test_the_error_names_file_and_family_and_the_families_that_run(
    tmp_path: Path, kind: str, node: str, name: str
) -> None:
    prefix = CHECKPOINT if kind == "checkpoints" else ""
    network = next(item for item in LATER_NETWORKS if item.label == "Kandinsky 6")
    path = file_of(tmp_path / "models" / kind / "k6.safetensors", tensors_of(network, prefix))
    load = load_checkpoint if kind == "checkpoints" else load_unet
    with pytest.raises(BadModelFile) as refused:
        load(path, LoadTypes())
    for wanted in ("k6.safetensors", "Kandinsky 6", *(family.label for family in registry.families())):
        assert wanted in str(refused.value)
    inputs = {name: "k6.safetensors", **({"weight_dtype": "default"} if node == "UNETLoader" else {})}
    sampled = {"seed": 1, "steps": 2, "cfg": 2.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    prompt = {
        "1": {"class_type": node, "inputs": inputs},
        "2": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
        "3": {"class_type": "KSampler", "inputs": {**sampled, "model": ["1", 0], "latent_image": ["2", 0]}},
        "4": {"class_type": "ModelSave", "inputs": {"model": ["1", 0], "filename_prefix": "m"}},
    }
    with Engine(EngineSettings(base_directory=tmp_path, cpu=True)) as engine:
        with pytest.raises(PromptRejected) as rejected:
            engine.check(prompt)
        shown = str(rejected.value.as_json()["node_errors"])
        assert "k6.safetensors" in shown and "Kandinsky 6" in shown and registry.families()[0].label in shown
        plan = engine.checks.memory_plan(prompt)
        assert plan.unknown == ("k6.safetensors",) and "Kandinsky 6" in plan.refused["k6.safetensors"]
        assert plan.as_json()["refused"] == [{"model": "k6.safetensors", "found": plan.refused["k6.safetensors"]}]
