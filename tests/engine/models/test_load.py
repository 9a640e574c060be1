"""Single-file SD1.5 checkpoints: configuration by shapes, types, and what is said of files that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from darkroom.engine.diffusion.model_sampling import VDiscrete
from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.registry import default_family
from darkroom.engine.families.sd15.unet_files import PREFIX
from darkroom.engine.formats.safetensors_file import SafetensorsFile, write_safetensors
from darkroom.engine.models import load
from darkroom.engine.models.load import LoadTypes, load_checkpoint, load_text_encoder, load_unet, load_vae
from tests.tiny_checkpoint import make_tiny_checkpoint


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("models"))


def test_configurations_are_read_from_the_shapes(tiny: Path) -> None:
    loaded = load_checkpoint(tiny, LoadTypes())
    small = default_family().scales["small"]
    assert (loaded.unet.config, loaded.vae.config) == (small.denoiser, small.vae)
    assert loaded.text_encoder.encoders()["l"].config == small.text["l"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_come_in_the_wanted_type_with_the_files_values(tiny: Path, dtype: torch.dtype) -> None:
    loaded = load_checkpoint(tiny, LoadTypes(unet=dtype))
    weight = loaded.unet.get_parameter("input_blocks.1.0.in_layers.2.weight")
    stored = SafetensorsFile(tiny).tensor(PREFIX + "input_blocks.1.0.in_layers.2.weight")
    assert weight.dtype == dtype
    assert torch.equal(weight, stored.to(dtype))
    assert not any(item.is_meta or item.requires_grad for item in loaded.unet.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_files_of_other_types_load(tiny: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    file = SafetensorsFile(tiny)
    path = tmp_path / "other.safetensors"
    write_safetensors(path, {name: file.tensor(name).to(dtype) for name in file.tensors})
    name = "out.2.weight"
    expected = load_checkpoint(tiny, LoadTypes()).unet.get_parameter(name).to(dtype).float()
    assert torch.equal(load_checkpoint(path, LoadTypes()).unet.get_parameter(name), expected)


def test_parts_of_a_checkpoint_load_alone(tiny: Path) -> None:
    assert load_unet(tiny, LoadTypes()).unet.in_channels == 4
    assert load_vae(tiny, LoadTypes()).downscale_ratio == 8
    assert load_text_encoder(tiny, LoadTypes()).encoders()["l"].num_layers == 2


def test_v_prediction_is_recognised_by_its_mark(tiny: Path, tmp_path: Path) -> None:
    file = SafetensorsFile(tiny)
    path = tmp_path / "v.safetensors"
    write_safetensors(path, {**{name: file.tensor(name) for name in file.tensors}, "v_pred": torch.tensor([])})
    assert load_checkpoint(path, LoadTypes()).denoiser.parameterisation.kind is VDiscrete


def _bad(path: Path) -> BadModelFile:
    with pytest.raises(BadModelFile) as caught:
        load_checkpoint(path, LoadTypes())
    assert path.name in str(caught.value)
    return caught.value


@pytest.mark.parametrize("cut", [0, 5, 1000, 2_000_000])
def test_a_truncated_file_is_named(tiny: Path, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cut.safetensors"
    path.write_bytes(tiny.read_bytes()[:cut])
    assert "bytes" in _bad(path).found


def test_a_truncated_file_is_named_with_the_first_tensor_that_is_not_whole(tiny: Path, tmp_path: Path) -> None:
    name, place = sorted(SafetensorsFile(tiny).tensors.items(), key=lambda item: item[1].start)[100]
    path = tmp_path / "cut.safetensors"
    path.write_bytes(tiny.read_bytes()[: place.start + place.num_bytes - 1])
    assert f"{name!r} is the first tensor that is not whole" in _bad(path).found


def test_a_file_larger_than_ram_is_refused_by_its_header(tmp_path: Path) -> None:
    """A sparse file of the tensors of a large model of another family, of 1 TB."""
    names = [f"model.diffusion_model.double_blocks.{index}.img_attn.qkv.weight" for index in range(2000)]
    size = 1 << 29
    header = {
        name: {"dtype": "F16", "shape": [1 << 14, 1 << 14], "data_offsets": [size * index, size * (index + 1)]}
        for index, name in enumerate(names)
    }
    raw = json.dumps(header).encode()
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + size * len(names))
    error = _bad(path)  # reading a terabyte would outlast the test's time
    assert error.found.startswith("only a part of the network of Flux, or one in an unknown layout")
    assert error.expected == f"a checkpoint of {registry.labels()}"


@pytest.mark.parametrize(
    "gone",
    [
        "middle_block.0.in_layers.2.weight",
        "middle_block.1.proj_in.weight",
        "input_blocks.2.0.op.weight",
        "out.2.weight",
    ],
)
def test_a_missing_tensor_by_which_a_layer_is_known_is_named(tiny: Path, tmp_path: Path, gone: str) -> None:
    file = SafetensorsFile(tiny)
    tensors = {name: file.tensor(name) for name in file.tensors}
    del tensors[PREFIX + gone]
    write_safetensors(tmp_path / "gap.safetensors", tensors)
    assert gone in _bad(tmp_path / "gap.safetensors").found


@pytest.mark.parametrize(
    "name", ["in_layers.2.weight", "in_layers.0.weight", "in_layers.0.bias", "out_layers.0.weight"]
)
def test_a_tensor_of_another_shape_than_its_layer_is_named(tiny: Path, tmp_path: Path, name: str) -> None:
    file = SafetensorsFile(tiny)
    tensors = {key: file.tensor(key) for key in file.tensors}
    wrong = f"{PREFIX}middle_block.0.{name}"
    tensors[wrong] = torch.zeros((3,) * tensors[wrong].ndim)
    write_safetensors(tmp_path / "mixed.safetensors", tensors)
    error = _bad(tmp_path / "mixed.safetensors")
    assert error.found.startswith(f"{wrong!r} of shape [3") and "shape [" in error.expected


@pytest.mark.parametrize(
    "name",
    [
        "cond_stage_model.transformer.text_model.final_layer_norm.weight",
        "first_stage_model.decoder.norm_out.weight",
        "first_stage_model.encoder.norm_out.bias",
    ],
)
@pytest.mark.parametrize("is_there", [True, False])
def test_a_wrong_tensor_of_a_further_network_is_named_before_any_is_filled(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_there: bool
) -> None:
    file = SafetensorsFile(tiny)
    tensors = {key: file.tensor(key) for key in file.tensors}
    del tensors[name]
    write_safetensors(tmp_path / "mixed.safetensors", tensors | ({name: torch.zeros(3)} if is_there else {}))
    filled: list[object] = []
    monkeypatch.setattr(load, "fill", lambda *given, **options: filled.append(given))
    error = _bad(tmp_path / "mixed.safetensors")
    own = name.removeprefix("first_stage_model.").removeprefix("cond_stage_model.transformer.text_model.")
    assert f"{name!r} of shape [3]" in error.found if is_there else own in error.found
    assert not filled


def test_shapes_that_no_network_can_have_are_refused(tiny: Path, tmp_path: Path) -> None:
    file = SafetensorsFile(tiny)
    tensors = {key: file.tensor(key) for key in file.tensors}
    name = PREFIX + "middle_block.0."
    wrong = {"in_layers.0.weight": (3,), "in_layers.0.bias": (3,), "in_layers.2.weight": (3, 3, 3, 3)}
    tensors |= {name + key: torch.zeros(shape) for key, shape in wrong.items()}
    write_safetensors(tmp_path / "mixed.safetensors", tensors)
    assert "tensors of shapes that no network can have" in _bad(tmp_path / "mixed.safetensors").found


def test_a_text_encoder_of_another_model_is_named(tiny: Path, tmp_path: Path) -> None:
    file = SafetensorsFile(tiny)
    tensors = {key: file.tensor(key) for key in file.tensors if not key.startswith("cond_stage_model.")}
    other = "conditioner.embedders.1.model.text_projection.weight"
    write_safetensors(tmp_path / "mixed.safetensors", {**tensors, other: torch.zeros(4, 4)})
    assert f"the text encoder of another model, {other!r}" in _bad(tmp_path / "mixed.safetensors").found


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"PK\x03\x04" + bytes(100), "zip archive"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        ((20).to_bytes(8, "little") + b"x" * 40, "not JSON"),
    ],
)
def test_files_of_other_kinds_are_named(tmp_path: Path, content: bytes, found: str) -> None:
    path = tmp_path / "other.safetensors"
    path.write_bytes(content)
    assert found in _bad(path).found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("conditioner.embedders.1.model.ln_final.weight", "Stable Diffusion XL"),
        ("cond_stage_model.model.ln_final.weight", "Stable Diffusion 2.x"),
        ("model.diffusion_model.double_blocks.0.img_attn.qkv.weight", "Flux"),
        ("lora_unet_down_blocks_0.lora_up.weight", "LoRA"),
        ("distilled_guidance_layer.in_proj.weight", "part of the network of Chroma"),
        ("diffusion_model.transformer_blocks.0.img_mod.1.weight", "part of the network of Qwen-Image"),
        ("model.diffusion_model.patchify_proj.weight", "part of the network of LTX-Video"),
        ("model.double_layers.0.attn.w1q.weight", "part of the network of AuraFlow"),
        ("context_refiner.0.attention.qkv.weight", "part of the network of Lumina 2"),
        ("head.modulation", "part of the network of Wan"),
        ("diffusion_model.blocks.0.self_attn.q.lora_A.weight", "a LoRA"),
        ("encoder.block.0.layer.0.SelfAttention.q.weight", "a T5 text encoder"),
        ("model.embed_tokens.weight", "a language model"),
        ("something.else", "no known network"),
    ],
)
def test_other_families_are_refused_by_name(tmp_path: Path, name: str, found: str) -> None:
    path = tmp_path / "family.safetensors"
    write_safetensors(path, {name: torch.zeros(4, 4)})
    error = _bad(path)
    assert found in error.found
    assert "Stable Diffusion 1" in error.expected


def test_a_missing_weight_is_named(tiny: Path, tmp_path: Path) -> None:
    file = SafetensorsFile(tiny)
    path = tmp_path / "gap.safetensors"
    gone = PREFIX + "middle_block.0.in_layers.2.bias"
    write_safetensors(path, {name: file.tensor(name) for name in file.tensors if name != gone})
    assert "middle_block.0.in_layers.2.bias" in _bad(path).found


def test_text_encoders_of_float32_files_are_rounded_to_float16_as_comfyui_keeps_them(
    tiny: Path, tmp_path: Path
) -> None:
    file = SafetensorsFile(tiny)
    exact = {name: file.tensor(name).float() * (1 + 2**-13) for name in file.tensors}
    write_safetensors(tmp_path / "exact.safetensors", exact)
    kept, asked_for = (
        load_checkpoint(tmp_path / "exact.safetensors", LoadTypes(patched_text_encoder=dtype)).text_encoder
        for dtype in (torch.float16, None)
    )
    name = "text_model.encoder.layers.0.mlp.fc1.weight"
    whole = exact[f"cond_stage_model.transformer.{name}"]
    assert torch.equal(kept.encoders()["l"].transformer.get_parameter(name), whole.half().float())
    assert torch.equal(asked_for.encoders()["l"].transformer.get_parameter(name), whole)
