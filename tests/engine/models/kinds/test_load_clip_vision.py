"""Files of CLIP's image encoder, in both layouts, become one network of the shape they tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from darkroom.engine.errors import BadModelFile
from darkroom.engine.layers.clip_vision import ClipVisionConfig, ClipVisionModel
from darkroom.engine.layers.open_clip_names import LAYER_PARTS, layer_names
from darkroom.engine.models.kinds.load_clip_vision import OPEN_CLIP_NAMES, load_clip_vision

CONFIG = ClipVisionConfig(num_layers=3, width=32, inner_width=48, patch_px=4, image_px=16, projection_width=8)

Weights = dict[str, torch.Tensor]


def random_weights(config: ClipVisionConfig = CONFIG) -> Weights:
    torch.manual_seed(0)
    return {name: torch.randn(tensor.shape) * 0.2 for name, tensor in ClipVisionModel(config).state_dict().items()}


def _as_open_clip(weights: Weights) -> Weights:
    weights = dict(weights)
    renamed = {"visual.proj": weights.pop("visual_projection.weight").T.contiguous()}
    for theirs, ours in OPEN_CLIP_NAMES.items():
        renamed[f"visual.{theirs}"] = weights.pop(f"vision_model.{ours}")
    for index in range(CONFIG.num_layers):
        ours, theirs = f"vision_model.encoder.layers.{index}.", f"visual.transformer.resblocks.{index}."
        for kind in ("weight", "bias"):
            parts = [weights.pop(f"{ours}self_attn.{name}_proj.{kind}") for name in "qkv"]
            renamed[f"{theirs}attn.in_proj_{kind}"] = torch.cat(parts)
            for their_name, our_name in LAYER_PARTS.items():
                renamed[f"{theirs}{their_name}.{kind}"] = weights.pop(f"{ours}{our_name}.{kind}")
    assert not weights
    return renamed


def test_the_shape_is_read_from_the_file(tmp_path: Path) -> None:
    save_file(random_weights(), tmp_path / "a.safetensors")
    assert load_clip_vision(tmp_path / "a.safetensors", torch.float16).config == CONFIG


@pytest.mark.parametrize("has_projection", [True, False])
def test_the_image_encoder_of_llava_gives_tokens_of_its_language_model(tmp_path: Path, has_projection: bool) -> None:
    config = replace(CONFIG, language_width=24, projection_width=8 if has_projection else 0)
    save_file(random_weights(config), tmp_path / "a.safetensors")
    network = load_clip_vision(tmp_path / "a.safetensors", torch.float32)
    assert network.config == config
    last, _, embedded, projected = network(torch.randn(2, 3, 16, 16), intermediate_output=-2)
    assert projected is not None and projected.shape == (2, last.shape[1] - 1, 24)
    assert embedded.shape[1] == (8 if has_projection else 32)


def test_both_layouts_are_the_same_network(tmp_path: Path) -> None:
    save_file(random_weights(), tmp_path / "a.safetensors")
    save_file(_as_open_clip(random_weights()), tmp_path / "b.safetensors")
    first, second = (load_clip_vision(tmp_path / f"{name}.safetensors", torch.float32) for name in "ab")
    pixels = torch.randn(2, 3, 16, 16)
    for one, other in zip(first(pixels)[::2], second(pixels)[::2], strict=True):
        assert torch.equal(one, other)


def test_layers_are_kept_in_the_type_asked_for_and_the_outer_norms_as_float32(tmp_path: Path) -> None:
    save_file(random_weights(), tmp_path / "a.safetensors")
    network = load_clip_vision(tmp_path / "a.safetensors", torch.float16)
    exact = {name for name, weight in network.named_parameters() if weight.dtype == torch.float32}
    assert {name.rpartition(".")[0] for name in exact} == {
        "visual_projection",
        "vision_model.pre_layrnorm",
        "vision_model.post_layernorm",
    }


def test_larger_networks_than_vit_l_use_the_exact_activation(tmp_path: Path) -> None:
    config = ClipVisionConfig(25, 32, 16, 8, "gelu", patch_px=4, image_px=8, projection_width=8)
    save_file(random_weights(config), tmp_path / "h.safetensors")
    assert load_clip_vision(tmp_path / "h.safetensors", torch.float16).config == config


@pytest.mark.parametrize(
    ("left_out", "found"),
    [
        ("visual_projection.weight", "visual_projection"),
        ("vision_model.encoder.layers.1.mlp.fc1.bias", r"layers\.1\.mlp\.fc1\.bias"),
        ("vision_model.embeddings.class_embedding", "expected a CLIP vision model"),
    ],
)
def test_a_file_that_lacks_a_tensor_is_refused_by_its_name(left_out: str, found: str, tmp_path: Path) -> None:
    weights = random_weights()
    del weights[left_out]
    save_file(weights, tmp_path / "a.safetensors")
    with pytest.raises(BadModelFile, match=found):
        load_clip_vision(tmp_path / "a.safetensors", torch.float16)


def test_another_kind_of_image_encoder_is_named(tmp_path: Path) -> None:
    save_file({"vision_model.head.probe": torch.zeros(1)}, tmp_path / "a.safetensors")
    with pytest.raises(BadModelFile, match="SigLIP"):
        load_clip_vision(tmp_path / "a.safetensors", torch.float16)


@pytest.mark.parametrize("name", ["attn.in_proj_weight", "attn.out_proj.bias", "mlp.c_fc.weight", "ln_1.bias"])
def test_names_of_layers_are_read(name: str) -> None:
    found = list(layer_names(f"transformer.resblocks.12.{name}"))
    assert found and all(ours.startswith("encoder.layers.12.") for ours, _ in found)


NAFLEX = ClipVisionConfig(
    num_layers=3, width=32, inner_width=48, activation="gelu_tanh", patch_px=4, image_px=12, projection_width=0,
    has_class_token=False, most_patches=9, mean=(0.5, 0.5, 0.5), deviation=(0.5, 0.5, 0.5),
)  # fmt: skip


def test_siglip_2_keeps_the_proportions_of_images(tmp_path: Path) -> None:
    save_file(random_weights(NAFLEX), tmp_path / "a.safetensors")
    network = load_clip_vision(tmp_path / "a.safetensors", torch.float16)
    assert network.config == NAFLEX
    last, inner, embedded, _ = network.float()(torch.randn(2, 3, 8, 16), intermediate_output=-2)
    assert last.shape == (2, 8, 32) and torch.equal(last, embedded)
    assert inner is not None and inner.shape == last.shape


def test_a_table_of_positions_that_is_no_square_is_refused(tmp_path: Path) -> None:
    weights = random_weights(NAFLEX)
    weights["vision_model.embeddings.position_embedding.weight"] = torch.zeros(8, 32)
    save_file(weights, tmp_path / "a.safetensors")
    with pytest.raises(BadModelFile, match="a square number of rows"):
        load_clip_vision(tmp_path / "a.safetensors", torch.float16)
