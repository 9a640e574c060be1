"""Lens: positions of its tokens, empty prompts, and GPT-OSS with its sinks, windows and experts."""

from __future__ import annotations

from typing import TypeVar

import pytest
import torch

from darkroom.engine.families.lens.gpt_oss import (
    ExpertLinear,
    GptOss,
    GptOssConfig,
    Router,
    SinkAttention,
    seen_by,
    turns_of,
)
from darkroom.engine.families.lens.text import GPT_OSS, LAYERS, LensEncoder, LensTokenizer
from darkroom.engine.families.lens.transformer import LensConfig, LensTransformer, positions_of
from darkroom.engine.text.llama_tokens import byte_tokenizer
from darkroom.engine.text.vocabulary import stored_vocabulary

Network = TypeVar("Network", bound=torch.nn.Module)
CPU = torch.device("cpu")
TINY = GptOssConfig(
    hidden_size=16, intermediate_size=8, num_layers=24, heads=2, key_heads=1, num_experts=5, vocabulary_size=300
)


def filled(network: Network) -> Network:
    torch.manual_seed(0)
    for weight in network.requires_grad_(False).eval().parameters():
        torch.nn.init.normal_(weight, 0, 0.1)
    return network


def test_a_text_follows_the_middle_of_an_image() -> None:
    positions = positions_of(2, 3, 2, CPU)[0]
    assert positions[:6].tolist() == [[0, -1, -2], [0, -1, -1], [0, -1, 0], [0, 0, -2], [0, 0, -1], [0, 0, 0]]
    assert positions[6:].tolist() == [[1, 1, 1], [2, 2, 2]]


@torch.no_grad()
def test_an_image_is_generated_after_a_text_of_no_tokens() -> None:
    network = filled(
        LensTransformer(LensConfig(hidden_size=64, intermediate_size=32, num_layers=1, in_channels=8, text_dim=6))
    )
    x, times = torch.randn(1, 8, 3, 2), torch.tensor([0.4])
    alone, after_text = network(x, times, torch.zeros(1, 0, 24)), network(x, times, torch.randn(1, 4, 24))
    assert alone.shape == x.shape and alone.isfinite().all()
    assert not torch.allclose(alone, after_text, atol=1e-4)


def test_every_second_layer_sees_a_window() -> None:
    assert seen_by(3, None, CPU).tolist() == [[True, False, False], [True, True, False], [True] * 3]
    assert seen_by(3, 2, CPU).tolist() == [[True, False, False], [True, True, False], [False, True, True]]


def test_fast_rotations_are_kept_and_slow_ones_slowed() -> None:
    cos, sin = turns_of(2, CPU)
    angles = torch.atan2(sin[1], cos[1])
    plain = 1.0 / 150000.0 ** (torch.arange(32) / 32)
    torch.testing.assert_close(angles[:2], plain[:2])
    torch.testing.assert_close(angles[-2:], plain[-2:] / 32)
    torch.testing.assert_close(cos[0], torch.full([32], 1.3465736))


@torch.no_grad()
def test_a_sink_takes_attention_from_all_tokens() -> None:
    attention = filled(SinkAttention(TINY))
    attention.o_proj.bias.zero_()
    x, bias = torch.randn(3, 16), torch.zeros(3, 3)
    attention.sinks.fill_(-1e4)
    plain = attention(x, turns_of(3, CPU), bias)
    attention.sinks.fill_(1e4)
    assert plain.abs().max() > 1e-3
    assert attention(x, turns_of(3, CPU), bias).abs().max() < 1e-6


@torch.no_grad()
def test_a_token_has_shares_of_its_four_best_experts() -> None:
    shares = filled(Router(TINY))(torch.randn(7, 16))
    assert ((shares > 0).sum(dim=-1) == 4).all()
    torch.testing.assert_close(shares.sum(dim=-1), torch.ones(7))


@torch.no_grad()
def test_each_expert_has_its_own_matrix() -> None:
    layer = filled(ExpertLinear(3, 4, 5))
    x = torch.randn(1, 2, 4)
    found = layer(x)
    for expert in range(3):
        own = torch.nn.functional.linear(x[0], layer.weight[expert], layer.bias[expert])
        torch.testing.assert_close(found[expert], own)


def _encoder() -> LensEncoder:
    network = filled(GptOss(TINY))
    return LensEncoder(network, GPT_OSS.encoding, layers=LAYERS)


@torch.no_grad()
@pytest.mark.parametrize(("num_tokens", "kept"), [(0, 0), (97, 0), (100, 3)])
def test_the_beginning_of_the_template_is_left_out(num_tokens: int, kept: int) -> None:
    chunk = [(number % 256, 1.0) for number in range(num_tokens)]
    found = _encoder().encode_weighted([chunk], layer_idx=None, project_pooled=False)
    assert found.cond.shape == (1, kept, 4 * 16)


def test_prompts_have_at_most_512_tokens_and_empty_ones_none() -> None:
    tokenizer = LensTokenizer(
        None, slot="gpt_oss", vocabulary=lambda: stored_vocabulary(byte_tokenizer()), pad_token=0, min_length=1
    )
    assert tokenizer.tokenize_with_weights(" \n") == {"gpt_oss": [[]]}
    (chunk,) = tokenizer.tokenize_with_weights("a fox {in} the snow " * 50)["gpt_oss"]
    assert len(chunk) == 512


def test_what_all_experts_make_of_a_prompt_is_told_ahead() -> None:
    encoder = LensEncoder(GptOss(TINY), GPT_OSS.encoding, layers=LAYERS)
    assert encoder.working_bytes({"gpt_oss": [[(1, 1.0)] * 7]}, 2) == 6 * 5 * 8 * 7 * 2
