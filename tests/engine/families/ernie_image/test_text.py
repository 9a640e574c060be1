"""Ministral: which files are taken for it, and what it writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.ernie_image.text import MINISTRAL, MinistralEncoder
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.language_model import LLAMA3, LanguageModel, LanguageModelConfig

FLUX2 = registry.family_named("flux2")


def shapes_of(config: LanguageModelConfig) -> Mapping[str, tuple[int, ...]]:
    with unfilled():
        network = LanguageModel(config)
    return {name: tuple(weight.shape) for name, weight in network.state_dict().items()}


@pytest.mark.parametrize("text_type", ["flux2", "stable_diffusion"])
@pytest.mark.parametrize("size", ["full", "small"])
def test_files_are_known_by_their_size(text_type: str, size: str) -> None:
    shapes = shapes_of(MINISTRAL.network.sizes[size])
    family, ((encoder, _),) = registry.recognise_text_encoders([shapes], text_type)
    assert family.name == "ernie_image" and encoder.encoding.slot == "ministral3_3b"


@pytest.mark.parametrize("size", ["full", "small"])
def test_mistral_of_flux2_is_not_taken_for_it(size: str) -> None:
    mistral = next(item for item in FLUX2.text if item.encoding.slot == "mistral3_24b")
    family, _ = registry.recognise_text_encoders([shapes_of(mistral.network.sizes[size])], "flux2")
    assert family is FLUX2


@torch.no_grad()
def test_a_written_token_is_seen_by_those_behind_it() -> None:
    torch.manual_seed(0)
    config = LanguageModelConfig(
        kind=LLAMA3, num_layers=2, width=16, heads=1, key_heads=1, inner_width=8, vocabulary_size=32
    )
    network: Any = LanguageModel(config)
    for weight in network.parameters():
        torch.nn.init.normal_(weight, 0, 0.3)
    encoder = MinistralEncoder(network, MINISTRAL.encoding)
    following = encoder.written([1, 5, 7])
    next(following)
    second = following.send(9)
    at_once = next(encoder.written([1, 5, 7, 9]))
    torch.testing.assert_close(second, at_once, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(second, next(encoder.written([1, 5, 7, 3])), atol=1e-3)
