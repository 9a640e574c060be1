"""Krea 2: what tells its files, its text encoder's layers and images, reference images, LoRAs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised, TensorIndex
from darkroom.engine.families.krea2.diffusers_names import lora_keys
from darkroom.engine.families.krea2.text import LAYERS, QWEN
from darkroom.engine.families.krea2.transformer import Krea2Transformer
from darkroom.engine.families.registry import family_named
from darkroom.engine.layers.qwen3_vl_vision import interpolated_places
from darkroom.engine.layers.token_rotations import rotation
from darkroom.engine.layers.vision_language_model import VisionLanguageModel
from darkroom.engine.text.qwen_tokens import IMAGE_PLACEHOLDER, IMAGE_TOKEN
from tests.parity.models import read_layouts

FAMILY = family_named("krea2")
SMALL = FAMILY.scales["small"]
LAYOUTS = {layout.name: layout for layout in read_layouts() if layout.family in ("krea2", "text")}


def shapes_of(name: str) -> dict[str, tuple[int, ...]]:
    return {key: shape for key, shape in LAYOUTS[name].tensors.items() if not isinstance(shape, str)}


def small_network() -> Krea2Transformer:
    torch.manual_seed(0)
    network = Krea2Transformer(SMALL.denoiser).requires_grad_(False)
    for name, weight in network.named_parameters():
        if name.endswith(("scale", "lin")):
            weight.normal_(0, 0.1)
    return network


@pytest.fixture(scope="module")
def network() -> Krea2Transformer:
    return small_network()


@pytest.fixture(scope="module")
def inputs() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {
        "x": torch.randn(2, 16, 1, 5, 6),
        "timesteps": torch.tensor([0.7, 0.2]),
        "context": torch.randn(2, 4, SMALL.denoiser.context_dim),
    }


def test_the_network_and_the_published_text_encoder_are_recognised() -> None:
    shapes = shapes_of("krea2")
    assert registry.recognise(TensorIndex(shapes)).family is FAMILY
    assert FAMILY.denoiser.configure(shapes) == SMALL.denoiser
    published = shapes_of("qwen3vl_4b")
    family, ((encoder, names),) = registry.recognise_text_encoders([published], "krea2")
    assert (family, encoder) == (FAMILY, QWEN)
    assert encoder.network.configure(registry.shapes_under(names, published)) == SMALL.text["qwen3vl_4b"]


@pytest.mark.parametrize(("name", "width"), [("qwen3", None), ("qwen3vl_4b", 4096)])
def test_other_language_models_are_refused(name: str, width: int | None) -> None:
    shapes = shapes_of(name)
    if width is not None:
        shapes = {key: tuple(width if side == 32 else side for side in shape) for key, shape in shapes.items()}
    with pytest.raises(NotRecognised):
        registry.recognise_text_encoders([shapes], "krea2")


def test_prompts_name_each_of_their_images_before_the_text() -> None:
    parts: Any = None
    encoder: Any = QWEN.encoder_type(_StubTransformer(), QWEN.encoding)
    tokenizer = QWEN.tokenizer(encoder, parts)
    image = torch.zeros(1, 32, 32, 3)
    (chunk,) = tokenizer.tokenize_with_weights("a fox", images=[image, image])["qwen3vl_4b"]
    assert sum(isinstance(token, dict) for token, _ in chunk) == 2
    (chunk,) = tokenizer.tokenize_with_weights(f"{IMAGE_PLACEHOLDER} a fox", images=[image], llama_template="{}")[
        "qwen3vl_4b"
    ]
    assert [place for place, (token, _) in enumerate(chunk) if isinstance(token, dict)] == [1]
    (chunk,) = tokenizer.tokenize_with_weights("a fox")["qwen3vl_4b"]
    assert IMAGE_TOKEN not in [token for token, _ in chunk]


class _StubTransformer(torch.nn.Module):
    config = SMALL.text["qwen3vl_4b"]
    num_layers = 36


def test_images_reach_the_first_layers_too() -> None:
    torch.manual_seed(0)
    model = VisionLanguageModel(SMALL.text["qwen3vl_4b"]).model.requires_grad_(False)
    embeds = torch.randn(1, 6, 32)
    added = [torch.zeros(6, 32) for _ in range(3)]
    added[1][2:4] = torch.randn(2, 32)
    plain, deep = (list(model.states(embeds, added=rows)) for rows in ((), added))
    assert torch.equal(plain[1], deep[1])
    assert torch.equal(plain[2][:, :2], deep[2][:, :2]) and torch.equal(plain[2][:, 4:], deep[2][:, 4:])
    assert torch.allclose(plain[2][:, 2:4] + added[1][2:4], deep[2][:, 2:4])
    assert model.chosen_states(LAYERS, embeds).shape == (1, len(LAYERS), 6, 32)


def test_a_table_of_places_keeps_its_corners_at_every_size() -> None:
    table = torch.arange(16.0)[:, None]  # 4 x 4
    assert interpolated_places(table, 4, 4)[:4, 0].tolist() == [0, 1, 4, 5]  # the four patches of the first token
    stretched = interpolated_places(table, 2, 6)[:, 0]
    assert stretched[[0, -1]].tolist() == [0, 15]
    assert torch.allclose(stretched[:2], torch.tensor([0, 0.6]))


def test_axes_of_places_take_turns_among_the_pairs_of_channels() -> None:
    positions = torch.tensor([[1.0], [2.0], [3.0]])  # one token: time, row, column
    cos, _ = rotation(positions, 16, 1.0, sections=(4, 2, 2), interleaved=True)
    assert torch.allclose(cos[0, 0, 0, :8].acos(), torch.tensor([1.0, 2, 3, 1, 2, 3, 1, 1]), atol=1e-4)


def test_references_are_seen_only_where_a_method_says_how(
    network: Krea2Transformer, inputs: dict[str, torch.Tensor]
) -> None:
    reference = [torch.randn(2, 16, 1, 4, 4)]
    plain = network(**inputs)
    assert plain.shape == inputs["x"].shape
    assert torch.equal(network(**inputs, ref_latents=reference), plain)
    by_index = network(**inputs, ref_latents=reference, ref_latents_method="index")
    at_zero = network(**inputs, ref_latents=reference, ref_latents_method="index_timestep_zero")
    assert not torch.allclose(by_index, plain) and not torch.allclose(at_zero, by_index)


def test_at_time_zero_both_methods_are_one(network: Krea2Transformer, inputs: dict[str, torch.Tensor]) -> None:
    given: dict[str, Any] = {**inputs, "timesteps": torch.zeros(2), "ref_latents": [torch.randn(2, 16, 1, 4, 4)]}
    methods = ("index", "index_timestep_zero")
    first, second = (network(**given, ref_latents_method=method) for method in methods)
    assert torch.allclose(first, second, atol=1e-5)


def test_loras_of_the_diffusers_library_are_found_under_every_prefix() -> None:
    keys = lora_keys(["diffusion_model.blocks.1.attn.wo.weight"], SMALL.denoiser)
    for prefix in ("diffusion_model.", "transformer.", ""):
        assert keys[f"{prefix}transformer_blocks.1.attn.to_out.0"] == "diffusion_model.blocks.1.attn.wo.weight"
        assert keys[f"{prefix}text_fusion.refiner_blocks.0.ff.up"] == (
            "diffusion_model.txtfusion.refiner_blocks.0.mlp.up.weight"
        )
    assert keys["lycoris_transformer_blocks_0_attn_to_gate"] == "diffusion_model.blocks.0.attn.gate.weight"
    assert keys["lora_unet_blocks_1_attn_wo"] == "diffusion_model.blocks.1.attn.wo.weight"


def test_the_text_encoder_writes_as_if_it_read_all_tokens_again() -> None:
    torch.manual_seed(0)
    encoder: Any = QWEN.encoder_type(VisionLanguageModel(SMALL.text["qwen3vl_4b"]).requires_grad_(False), QWEN.encoding)
    chunk: list[Any] = [5, {"type": "image", "data": torch.rand(1, 64, 64, 3)}, 7]
    writing = encoder.written(chunk)
    scores = next(writing)
    for token in (11, 12, 13):
        chunk.append(token)
        again = next(encoder.written(chunk))
        assert scores.shape == again.shape == (1, SMALL.text["qwen3vl_4b"].language.vocabulary_size)
        scores = writing.send(token)
        torch.testing.assert_close(scores, again, atol=1e-4, rtol=1e-4)
