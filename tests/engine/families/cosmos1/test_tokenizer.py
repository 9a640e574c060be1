"""The wavelet autoencoder of videos: its transform and back, causality, and places of its transformer."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.families.cosmos1.tokenizer import CosmosTokenizer, CosmosTokenizerConfig, restored, transformed
from darkroom.engine.families.cosmos1.transformer import Cosmos1Config, Cosmos1Transformer


def test_the_transform_is_undone() -> None:
    x = torch.randn(2, 3, 4, 6, 8)
    parts = transformed(x)
    assert parts.shape == (2, 24, 2, 3, 4)
    torch.testing.assert_close(parts[:, :3, 0, 0, 0], x[:, :, :2, :2, :2].mean(dim=(2, 3, 4)))  # averages come first
    torch.testing.assert_close(restored(parts), x)


def test_odd_sides_are_mirrored() -> None:
    assert transformed(torch.randn(1, 1, 7, 4, 4)).shape == (1, 8, 4, 2, 2)


def test_no_frame_sees_later_ones() -> None:
    torch.manual_seed(0)
    network = CosmosTokenizer(CosmosTokenizerConfig(channels=16, level_channels=(16, 16), blocks_per_level=1)).eval()
    for weight in network.parameters():
        if weight.ndim == 1:  # norms, biases and statistics
            torch.nn.init.ones_(weight)
        else:
            torch.nn.init.normal_(weight, 0, 0.1)
    latents = torch.randn(1, 16, 3, 2, 2)
    changed = latents.clone()
    changed[:, :, 2] += 1.0
    with torch.no_grad():
        first, second = network.decode(latents), network.decode(changed)
        assert first.shape == (1, 3, 17, 16, 16)
        torch.testing.assert_close(first[:, :, :9], second[:, :, :9])
        assert not torch.allclose(first[:, :, 9:], second[:, :, 9:])
        assert network.encode(first).shape == latents.shape


def test_a_video_larger_than_the_learned_places_is_refused() -> None:
    config = Cosmos1Config(
        width=128, num_blocks=1, context_dim=8, inner_width=16, rank=4, places=(2, 4, 4), stretch=(2.0, 1.0, 1.0)
    )
    network, text = Cosmos1Transformer(config), torch.zeros(1, 3, 8)
    with pytest.raises(
        ValueError, match=r"got 3 latent frames of 4 x 8 cells, expected at most 2 latent frames of 8 x 8"
    ):
        network(torch.zeros(1, 16, 3, 8, 4), torch.zeros(1), text)
    with pytest.raises(ValueError, match="multiples of 2"):
        network(torch.zeros(1, 16, 2, 8, 3), torch.zeros(1), text)
