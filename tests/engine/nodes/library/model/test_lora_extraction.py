"""A model's difference as a LoRA file: applied to the one model it gives the other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from darkroom.engine.formats.safetensors_file import SafetensorsFile
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.nodes.library.model.lora_extraction import CLAMP_QUANTILE, lora_save, low_rank
from darkroom.engine.nodes.library.model.model_merging import clip_merge_subtract
from tests.engine.nodes.small_store import node_context, small_store


@pytest.mark.parametrize("kernel", [(), (1, 1), (3, 3)])
def test_a_difference_of_low_rank_comes_back_but_for_the_values_cut_off(kernel: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    difference = (torch.randn(20, 2) @ torch.randn(2, 12 * max(1, len(kernel) and kernel[0] ** 2))).reshape(
        20, 12, *kernel
    )
    up, down = low_rank(difference, 2)
    assert up.shape == (20, 2, *(1 for _ in kernel)) and down.shape == (2, 12, *kernel)
    joined = (up.flatten(1) @ down.flatten(1)).reshape(difference.shape)
    assert float((joined - difference).norm() / difference.norm()) < 3 * (1 - CLAMP_QUANTILE) ** 0.5


def test_a_text_encoders_difference_is_saved_as_float16(tmp_path: Path) -> None:
    for index, name in enumerate("ab"):
        write_random_checkpoint(tmp_path / "checkpoints" / f"{name}.safetensors", "small", seed=index)
    store = small_store(tmp_path)
    context = node_context(store, tmp_path / "output")
    first, second = (store.checkpoint(f"{name}.safetensors")[1] for name in "ab")
    difference = clip_merge_subtract(context, clip1=first, clip2=second, multiplier=1.0)
    lora_save(context, filename_prefix="loras/d", rank=4, lora_type="full_diff", text_encoder_diff=difference)
    file = SafetensorsFile(tmp_path / "output" / "loras" / "d_00001_.safetensors")
    name = "text_model.encoder.layers.0.mlp.fc1"
    key = f"clip_l.transformer.{name}"
    weights = [clip.patcher.weights.original_weight(f"{key}.weight") for clip in (first, second) if clip]
    saved = file.tensor(f"text_encoders.{key}.diff")
    assert saved.dtype == torch.float16
    torch.testing.assert_close(saved.float(), weights[0] - weights[1], atol=2e-3, rtol=0)
    assert f"text_encoders.{key}.diff_b" in file.tensors


def test_without_a_difference_nothing_is_written(tmp_path: Path) -> None:
    context = node_context(small_store(tmp_path), tmp_path / "output")
    lora_save(context, filename_prefix="loras/d", rank=4, lora_type="standard")
    assert not (tmp_path / "output" / "loras").exists()
