"""Tests of HunyuanDiT: the places of patches, BERT's list of words, and what its denoiser and ControlNets refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.hunyuan_dit.transformer import (
    HunyuanDitConfig,
    HunyuanDitTransformer,
    grid_places,
    hunyuan_dit_config,
)
from darkroom.engine.formats.safetensors_file import SafetensorsFile, write_safetensors
from darkroom.engine.models.load import LoadTypes, load_checkpoint
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.text.bert_tokens import letter_pieces

FAMILY = registry.family_named("hunyuan_dit")
WORDS = "text_encoders.hydit_clip.vocab_txt"
CONFIG = HunyuanDitConfig(
    width=176, num_blocks=4, heads=2, inner_width=64, context_dim=16, second_dim=16, pooled_dim=16
)


def test_places_are_those_of_the_grid_of_training_cut_or_filled_to_the_aspect_ratio() -> None:
    square, wide = grid_places(2, 2)[0], grid_places(1, 2)[0]
    assert square.tolist() == [[0, 0], [16, 0], [0, 16], [16, 16]]
    assert wide.tolist() == [[0, 8], [16, 8]]


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, has_sizes=True)])
def test_its_configuration_is_read_from_its_weights(config: HunyuanDitConfig) -> None:
    shapes = {name: tuple(item.shape) for name, item in HunyuanDitTransformer(config).state_dict().items()}
    assert hunyuan_dit_config(shapes) == config


def test_a_checkpoint_needs_berts_words_in_it_or_beside_it(tmp_path: Path) -> None:
    whole, bare = tmp_path / "whole.safetensors", tmp_path / "bare.safetensors"
    write_random_checkpoint(whole, family=FAMILY)
    file = SafetensorsFile(whole)
    write_safetensors(bare, {name: file.tensor(name) for name in file.tensors if name != WORDS}, {})
    with pytest.raises(BadModelFile, match=r"'vocab_txt'.*'hydit_vocab.txt'"):
        load_checkpoint(bare, LoadTypes())
    (tmp_path / "hydit_vocab.txt").write_bytes(letter_pieces())
    text_encoder = load_checkpoint(bare, LoadTypes()).text_encoder
    assert text_encoder is not None
    assert text_encoder.get_submodule("hydit_clip").vocabulary == letter_pieces()


def test_conditioning_of_another_family_is_refused() -> None:
    denoiser = FAMILY.denoiser_type(HunyuanDitTransformer(CONFIG))
    with pytest.raises(ValueError, match="without attention_mask, expected that of HunyuanDiT's encoders"):
        denoiser.extra_conds(noise=torch.zeros(1, 4, 8, 8), device="cpu", cross_attn=torch.zeros(1, 77, 16))


@torch.no_grad()
def test_a_control_of_another_number_of_blocks_is_refused() -> None:
    network = HunyuanDitTransformer(CONFIG)
    inputs = {
        "text_embedding_mask": torch.ones(1, 77), "encoder_hidden_states_t5": torch.zeros(1, 256, 16),
        "text_embedding_mask_t5": torch.ones(1, 256),
    }  # fmt: skip
    control: dict[str, list[torch.Tensor | None]] = {"output": [torch.zeros(1, 4, 176)] * 3}
    with pytest.raises(
        ValueError, match="control_net: it has another number of blocks than the model; got 3, expected 1"
    ):
        network(torch.zeros(1, 4, 4, 4), torch.zeros(1), torch.zeros(1, 77, 16), control=control, **inputs)
    with pytest.raises(ValueError, match="too few tokens of text; got 5, expected at least 77"):
        network(torch.zeros(1, 4, 4, 4), torch.zeros(1), torch.zeros(1, 5, 16), **inputs)
