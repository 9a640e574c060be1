"""Anima: both tokenizers of its prompts, the text adapter, and its LLLite controls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.anima.lllite import AnimaLLLite, LLLiteConfig, as_described, lllite_config
from darkroom.engine.families.anima.text import AnimaTokenizer
from darkroom.engine.families.anima.text_adapter import TextAdapter, TextAdapterConfig
from darkroom.engine.families.anima.transformer import AnimaTransformer, anima_config
from darkroom.engine.families.base import NotRecognised, TensorIndex
from darkroom.engine.families.cosmos_predict2.transformer import takes_positions
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.models.kinds.lllite_patch import LLLiteAttentionPatch, LLLiteMlpPatch, LLLitePatch
from darkroom.engine.models.kinds.load_model_patch import load_model_patch
from darkroom.engine.models.load import LoadTypes
from darkroom.engine.text.language_tokens import qwen3

FAMILY = registry.family_named("anima")
SMALL = FAMILY.sizes["small"]
CONTROL = LLLiteConfig(
    modules=(("lllite_dit_blocks_0_self_attn_q_proj", 8), ("lllite_dit_blocks_1_mlp_layer1", 12)),
    hidden_size=256, image_channels=4, channels=16, embedding_dim=10, num_blocks=1, dilations=(1, 2), hides_masked=True,
)  # fmt: skip
METADATA = {"lllite.version": "2", "lllite.aspp_dilations": "1,2", "lllite.inpaint_masked_input": "True"}


def shapes_of(network: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in network.state_dict().items()}


@pytest.mark.parametrize("size", ["full", "small"])
def test_shapes_tell_the_network_and_its_adapter(size: str) -> None:
    with unfilled():
        shapes = shapes_of(AnimaTransformer(FAMILY.sizes[size]))
    assert anima_config(shapes) == FAMILY.sizes[size]
    for prefix in ("", "net.", "model.diffusion_model."):
        index = TensorIndex({prefix + name: shape for name, shape in shapes.items()}, {})
        assert registry.recognise(index).family is FAMILY
    bare = {name: shape for name, shape in shapes.items() if not name.startswith("llm_adapter.")}
    assert registry.recognise(TensorIndex(bare, {})).family.name == "cosmos_predict2"


def _tokenizer() -> AnimaTokenizer:
    return AnimaTokenizer(None, encoding=FAMILY.text[0].encoding, vocabulary=qwen3)


def test_weights_are_those_of_t5s_tokens_alone() -> None:
    found = _tokenizer().tokenize_with_weights("a (fox:1.5)")
    assert set(found) == {"qwen3_06b", "t5xxl"}
    assert {weight for _, weight in found["qwen3_06b"][0]} == {1.0}
    assert [token for token, _ in found["qwen3_06b"][0]] == [64, 220, 15011]  # each part of a weight by itself
    weights = [weight for _, weight in found["t5xxl"][0]]
    assert weights[0] == 1.0 and weights[-1] == 1.0 and 1.5 in weights
    assert found["t5xxl"][0][-1] == (1, 1.0)  # the end


def test_an_empty_prompt_is_a_padding_for_one_and_the_end_for_the_other() -> None:
    found = _tokenizer().tokenize_with_weights("")
    assert found == {"qwen3_06b": [[(151643, 1.0)]], "t5xxl": [[(1, 1.0)]]}


def test_tokens_and_weights_are_options_of_the_conditioning() -> None:
    encoder: Any = FAMILY.text[0].encoder_type
    options = encoder.further_options(_Options(encoder), {"qwen3_06b": [], "t5xxl": [[(5, 1.0), (9, 0.5), (1, 1.0)]]})
    assert options["t5xxl_ids"].tolist() == [5, 9, 1] and options["t5xxl_ids"].dtype == torch.int
    assert options["t5xxl_weights"].tolist() == [1.0, 0.5, 1.0]


class _Options:
    def __init__(self, encoder: Any) -> None:
        self.token_options, self.weighted_token_options = encoder.token_options, encoder.weighted_token_options


@torch.no_grad()
def test_a_text_is_weighted_and_filled_up_to_512_tokens() -> None:
    torch.manual_seed(0)
    adapter = TextAdapter(TextAdapterConfig(24, 16, 32, 8, 2, 48, 100))
    states, tokens = torch.randn(1, 7, 24), torch.tensor([[3, 4, 99]])
    plain = adapter(states, tokens)
    assert plain.shape == (1, 512, 16) and not plain[:, 3:].any() and plain[:, :3].all()
    weights = torch.tensor([[1.0, 2.0, 0.5]])
    torch.testing.assert_close(adapter(states, tokens, weights)[:, :3], plain[:, :3] * weights[..., None])
    assert adapter(states, tokens.repeat(1, 200)).shape == (1, 600, 16)


@pytest.mark.parametrize(
    ("states", "tokens", "message"),
    [(128, [40000], "t5xxl_ids has a token"), (64, [1], "expected 128"), (128, None, "expected 64")],
)
def test_text_of_other_encoders_is_refused(states: int, tokens: list[int] | None, message: str) -> None:
    with unfilled():
        network = AnimaTransformer(SMALL)
    denoiser = FAMILY.denoiser_type(network)
    condition: dict[str, Any] = {"cross_attn": torch.zeros(1, 3, states)}
    if tokens is not None:
        condition["t5xxl_ids"] = torch.tensor(tokens)
    with pytest.raises(ValueError, match=message):
        denoiser.check_text(condition)


def test_shapes_and_metadata_tell_a_control() -> None:
    shapes = shapes_of(AnimaLLLite(CONTROL))
    assert as_described(lllite_config(shapes), METADATA) == CONTROL


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"lllite.version": "1"}, "version '1'"),
        ({"lllite.aspp_dilations": "1,2,4"}, "do not describe it"),
        ({"lllite.aspp_dilations": "1,-3"}, "do not describe it"),
        ({"lllite.aspp_dilations": "1,9999999"}, "do not describe it"),
    ],
)
def test_controls_of_other_versions_are_refused(metadata: dict[str, str], message: str) -> None:
    with pytest.raises(NotRecognised, match=message):
        as_described(CONTROL, metadata)


def test_controls_of_other_layers_are_refused() -> None:
    shapes = {
        name.replace("mlp_layer1", "mlp_layer9"): shape for name, shape in shapes_of(AnimaLLLite(CONTROL)).items()
    }
    with pytest.raises(NotRecognised, match="lllite_dit_blocks_1_mlp_layer9"):
        lllite_config(shapes)
    with pytest.raises(NotRecognised, match="no layer"):
        lllite_config({name: shape for name, shape in shapes.items() if not name.startswith("lllite_dit")})


def test_a_control_is_loaded_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "control.safetensors"
    weights = {name: torch.randn(item.shape) for name, item in AnimaLLLite(CONTROL).state_dict().items()}
    write_safetensors(path, weights, METADATA)
    loaded: Any = load_model_patch(path, LoadTypes())
    assert loaded.config == CONTROL
    assert all(torch.equal(loaded.state_dict()[name], item) for name, item in weights.items())
    write_safetensors(path, weights, {**METADATA, "lllite.version": "3"})
    with pytest.raises(BadModelFile, match="version '3'"):
        load_model_patch(path, LoadTypes())


class _Held:
    """Stands for the patcher of a control's network."""

    def __init__(self, network: AnimaLLLite) -> None:
        self.model = network


@torch.no_grad()
def test_a_control_shifts_the_layers_that_its_file_names() -> None:
    torch.manual_seed(0)
    network = AnimaLLLite(CONTROL)
    for parameter in network.parameters():  # some are as the memory was
        parameter.normal_(std=0.1)
    held: Any = _Held(network)
    image, mask = torch.rand(1, 40, 60, 3), torch.zeros(1, 20, 20)
    patch = LLLitePatch(held, image, mask, 0.5, start=0.9, end=0.1)
    options: dict[str, Any] = {"model_patch_data": {}, "block_index": 0, "sigmas": torch.tensor([0.5])}
    latent = torch.zeros(1, 16, 1, 4, 6)
    patch({"img": None, "x": latent, "transformer_options": options})
    embedding = options["model_patch_data"][patch]
    assert embedding.shape == (1, 6, 10)
    patch({"img": None, "x": latent, "transformer_options": options})
    assert options["model_patch_data"][patch] is embedding  # the next step reads no image again
    for other in (latent.new_zeros(1, 16, 1, 6, 6), latent.double()):
        network.to(other.dtype)
        patch({"img": None, "x": other, "transformer_options": options})
        assert options["model_patch_data"][patch].shape[1] == other.shape[-1] * other.shape[-2] // 4
        assert options["model_patch_data"][patch].dtype == other.dtype
    network.float()
    patch({"img": None, "x": latent, "transformer_options": options})
    torch.testing.assert_close(options["model_patch_data"][patch], embedding, rtol=0, atol=0)

    tokens = torch.randn(2, 6, 256)
    attention = LLLiteAttentionPatch(patch, {"q": "self_attn_q_proj", "k": "self_attn_k_proj"})
    assert takes_positions(attention) and not takes_positions(lambda q, k, v, extra_options: q)
    found = attention(tokens, tokens, tokens, extra_options=options)
    assert not torch.equal(found["q"], tokens) and found["k"] is tokens and found["v"] is tokens
    doubled = LLLitePatch(held, image, mask, 1.0, start=0.9, end=0.1)
    options["model_patch_data"][doubled] = options["model_patch_data"][patch]
    further = LLLiteAttentionPatch(doubled, {"q": "self_attn_q_proj"})(tokens, tokens, tokens, extra_options=options)
    torch.testing.assert_close(further["q"] - tokens, 2 * (found["q"] - tokens), rtol=1e-4, atol=1e-5)

    video = torch.randn(1, 1, 2, 3, 256)
    inputs = {"x": video, "transformer_options": {**options, "block_index": 1}}
    assert LLLiteMlpPatch(patch)(inputs)["x"].shape == video.shape
    assert not torch.equal(LLLiteMlpPatch(patch)(inputs)["x"], video)
    with pytest.raises(ValueError, match="does not fit the latent"):
        patch.shifted(tokens[:, :5], options, "self_attn_q_proj")
    with pytest.raises(ValueError, match="2 latent frames"):
        patch({"x": torch.zeros(1, 16, 2, 4, 6), "transformer_options": options})


def test_a_control_rests_outside_of_its_noise_levels() -> None:
    held: Any = _Held(AnimaLLLite(replace(CONTROL, image_channels=3)))
    patch = LLLitePatch(held, torch.rand(1, 16, 16, 3), None, 1.0, start=0.9, end=0.1)
    for sigma in (0.95, 0.05):
        options: dict[str, Any] = {"model_patch_data": {}, "block_index": 0, "sigmas": torch.tensor([sigma])}
        patch({"x": torch.zeros(1, 16, 1, 2, 2), "transformer_options": options})
        assert options["model_patch_data"] == {}
        tokens = torch.randn(1, 1, 256)
        assert patch.shifted(tokens, options, "self_attn_q_proj") is tokens
