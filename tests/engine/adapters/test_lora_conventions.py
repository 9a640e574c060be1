"""LoRA files of a convention of their own are renamed by what they hold, before a model is looked at."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.adapters.lora_conventions import under_common_names


def test_a_lora_for_a_tool_widens_the_first_layer_and_sets_norms() -> None:
    lora = {
        "img_in.lora_A.weight": torch.zeros(2, 128), "img_in.lora_B.weight": torch.zeros(96, 2),
        "img_in.lora_B.bias": torch.zeros(96), "single_blocks.0.norm.key_norm.scale": torch.ones(128),
    }  # fmt: skip
    renamed = under_common_names(lora)
    first = "diffusion_model.img_in"
    assert set(renamed) == {
        f"{first}.lora_A.weight", f"{first}.lora_B.weight", f"{first}.diff_b", f"{first}.reshape_weight",
        "diffusion_model.single_blocks.0.norm.key_norm.scale.set_weight",
    }  # fmt: skip
    assert renamed[f"{first}.reshape_weight"].tolist() == [96, 128]


def test_a_lora_of_attention_processors_is_named_by_the_layers() -> None:
    names = {
        "double_blocks.18.processor.qkv_lora2.up.weight": "double_blocks.18.txt_attn.qkv.lora_up.weight",
        "double_blocks.0.processor.proj_lora1.down.weight": "double_blocks.0.img_attn.proj.lora_down.weight",
        "single_blocks.37.processor.qkv_lora.up.weight": "single_blocks.37.linear1_qkv.lora_up.weight",
        "single_blocks.0.processor.proj_lora.down.weight": "single_blocks.0.linear2.lora_down.weight",
    }
    renamed = under_common_names({name: torch.zeros(1) for name in names})
    assert set(renamed) == {f"diffusion_model.{name}" for name in names.values()}


def test_other_loras_keep_their_names() -> None:
    lora = {"lora_unet_double_blocks_0_img_attn_qkv.lora_up.weight": torch.zeros(1)}
    assert under_common_names(lora) is lora


@pytest.mark.parametrize("prefix", ["lora_unet_", "lora_te_"])
def test_an_empty_module_in_kohyas_names_is_left_out(prefix: str) -> None:
    """Wan-Fun's trainer names a module that has no name: two underscores for one."""
    lora = {f"{prefix}_blocks_0_k.lora_down.weight": torch.zeros(1), "lora_unet_b.alpha": torch.ones(1)}
    assert set(under_common_names(lora)) == {f"{prefix}blocks_0_k.lora_down.weight", "lora_unet_b.alpha"}
