"""Names of LoRA files, as each trainer writes them, lead to the same weights."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.adapters.lora import lora_patches
from darkroom.engine.adapters.lora_names import clip_text_keys, denoiser_keys
from darkroom.engine.adapters.weight_adapters import LohaAdapter, LoraAdapter
from darkroom.engine.families.registry import default_family
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.diffusers_names import unet_names
from darkroom.engine.layers.unet import UnetModel


@pytest.fixture(scope="module")
def keys() -> dict[str, str]:
    config = default_family().scales["full"].denoiser
    with unfilled():
        names = [f"diffusion_model.{name}" for name in UnetModel(config).state_dict()]
    return denoiser_keys(names, unet_names(config))


@pytest.mark.parametrize(
    "name",
    [
        "lora_unet_up_blocks_1_attentions_0_transformer_blocks_0_attn2_to_out_0",
        "lora_unet_output_blocks_3_1_transformer_blocks_0_attn2_to_out_0",
        "lycoris_up_blocks_1_attentions_0_transformer_blocks_0_attn2_to_out_0",
        "up_blocks.1.attentions.0.transformer_blocks.0.attn2.processor.to_out",
        "unet.up_blocks.1.attentions.0.transformer_blocks.0.attn2.processor.to_out",
        "diffusion_model.output_blocks.3.1.transformer_blocks.0.attn2.to_out.0",
    ],
)
def test_every_trainer_means_the_same_weight(keys: dict[str, str], name: str) -> None:
    assert keys[name] == "diffusion_model.output_blocks.3.1.transformer_blocks.0.attn2.to_out.0.weight"


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("down_blocks_2_downsamplers_0_conv", "input_blocks.9.0.op"),
        ("up_blocks_1_upsamplers_0_conv", "output_blocks.5.2.conv"),
        ("mid_block_resnets_1_conv1", "middle_block.2.in_layers.2"),
        ("down_blocks_1_resnets_0_conv_shortcut", "input_blocks.4.0.skip_connection"),
        ("time_embedding_linear_2", "time_embed.2"),
    ],
)
def test_names_of_diffusers_outside_of_attention(keys: dict[str, str], name: str, weight: str) -> None:
    assert keys[f"lora_unet_{name}"] == f"diffusion_model.{weight}.weight"


def test_text_encoder_names() -> None:
    weight = "clip_l.transformer.text_model.encoder.layers.3.self_attn.q_proj.weight"
    keys = clip_text_keys([weight], "clip_l.transformer.", projection=("lora_te1_text_projection",))
    for name in (
        "lora_te_text_model_encoder_layers_3_self_attn_q_proj",
        "lora_te1_text_model_encoder_layers_3_self_attn_q_proj",
        "text_encoder.text_model.encoder.layers.3.self_attn.q_proj",
        "text_encoders.clip_l.transformer.text_model.encoder.layers.3.self_attn.q_proj",
    ):
        assert keys[name] == weight


def test_patches_are_read_by_kind_and_strangers_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    lora = {
        "a.lora_up.weight": torch.ones(2, 1), "a.lora_down.weight": torch.ones(1, 2), "a.alpha": torch.tensor(0.5),
        "b.hada_w1_a": torch.ones(2, 1), "b.hada_w1_b": torch.ones(1, 2), "b.hada_w2_a": torch.ones(2, 1),
        "b.hada_w2_b": torch.ones(1, 2), "c.diff": torch.ones(2), "c.diff_b": torch.ones(2), "stranger": torch.ones(1),
    }  # fmt: skip
    patches = lora_patches(lora, {name: f"{name}.weight" for name in "abcd"})
    assert isinstance(patches["a.weight"], LoraAdapter) and patches["a.weight"].alpha == 0.5
    assert isinstance(patches["b.weight"], LohaAdapter)
    assert (patches["c.weight"][0], patches["c.bias"][0], "d.weight" in patches) == ("diff", "diff", False)
    assert caplog.messages[0] == "lora key not loaded: stranger"
    assert caplog.messages[1].startswith("LoRA: 1 of its 10 tensors are left out")


def test_an_adapter_that_lacks_a_tensor_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match=r"adapter of a is incomplete; expected a tensor a\.lora_down\.weight"):
        lora_patches({"a.lora_up.weight": torch.ones(2, 1)}, {"a": "a.weight"})


def test_the_bias_of_a_norm_counts_only_beside_its_weight(caplog: pytest.LogCaptureFixture) -> None:
    keys = {"a": "a.weight", "b": "b.weight"}
    lora = {"a.b_norm": torch.ones(2), "b.w_norm": torch.ones(2), "b.b_norm": torch.ones(2)}
    assert lora_patches(lora, keys).keys() == {"b.weight", "b.bias"}
    assert caplog.messages[0] == "lora key not loaded: a.b_norm"


def test_of_two_names_for_one_weight_the_last_is_used() -> None:
    keys = {"first": "a.weight", "second": "a.weight"}
    patches = lora_patches({"first.diff": torch.zeros(2), "second.diff": torch.ones(2)}, keys)
    assert torch.equal(patches["a.weight"][1][0], torch.ones(2))


def test_a_factor_of_several_values_is_named() -> None:
    lora = {"a.lora_up.weight": torch.zeros(2, 1), "a.lora_down.weight": torch.zeros(1, 2), "a.alpha": torch.zeros(3)}
    with pytest.raises(ValueError, match=r"LoRA: a\.alpha has 3 values; expected one"):
        lora_patches(lora, {"a": "a"})
