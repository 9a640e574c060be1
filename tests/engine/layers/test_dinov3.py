"""DINOv3's image encoder, and the network that enlarges its features."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from darkroom.engine.layers.dinov3 import Dinov3, Dinov3Config, dinov3_config, patch_turns
from darkroom.engine.layers.feature_upsampler import WINDOW, FeatureUpsampler, FeatureUpsamplerConfig

SMALL = Dinov3Config(num_layers=2, hidden_size=64, intermediate_size=96)


def random(module: torch.nn.Module) -> Any:
    generator = torch.Generator().manual_seed(0)
    for weight in module.parameters():
        weight.data.normal_(0.0, 0.3, generator=generator)
    return module.requires_grad_(False)


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        replace(SMALL, is_gated=True, image_px=1024, num_registers=2),
        replace(SMALL, upsampler=FeatureUpsamplerConfig(hidden_size=32, num_blocks=1)),
    ],
)
def test_its_configuration_is_read_from_shapes(config: Dinov3Config) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in Dinov3(config).state_dict().items()}
    assert dinov3_config(shapes) == config


def test_encoders_of_odd_sizes_are_refused() -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in Dinov3(SMALL).state_dict().items()}
    with pytest.raises(ValueError, match="got 65, expected a multiple of 64"):
        dinov3_config({**shapes, "embeddings.patch_embeddings.weight": (65, 3, 16, 16)})
    config = replace(SMALL, upsampler=FeatureUpsamplerConfig(hidden_size=32))
    shapes = {name: tuple(tensor.shape) for name, tensor in Dinov3(config).state_dict().items()}
    with pytest.raises(ValueError, match="got 9, expected a multiple of 8"):
        dinov3_config({**shapes, "naf.image_encoder.encoder.0.weight": (9, 3, 1, 1)})


def test_images_of_any_whole_patches_are_encoded() -> None:
    encoder = random(Dinov3(SMALL))
    tokens, inner, first, projected = encoder(torch.randn(2, 3, 32, 48))
    assert tokens.shape == (2, 1 + 4 + 6, 64) and inner is None and projected is None
    assert torch.equal(first, tokens[:, 0])
    plain = encoder(torch.randn(1, 3, 32, 32), skip_norm_elementwise=True)[0]
    torch.testing.assert_close(plain.mean(-1), torch.zeros(1, 9), atol=1e-5, rtol=0)


def test_positions_run_over_the_image_whatever_its_size() -> None:
    cos, sin = patch_turns(2, 4, torch.device("cpu"))
    assert cos.shape == sin.shape == (8, 32)
    # The first frequency is 2 pi: rows lie at -1/2 and 1/2, columns at -3/4, -1/4, 1/4 and 3/4.
    torch.testing.assert_close(cos[:, 0], torch.full((8,), -1.0))
    torch.testing.assert_close(sin[:4, 16], torch.tensor([1.0, -1.0, 1.0, -1.0]))


def test_a_pixel_attends_to_the_cells_around_its_own() -> None:
    """Beside attention over whole images, in which cells further away are masked and those outside are zeros."""
    network = random(FeatureUpsampler(FeatureUpsamplerConfig(hidden_size=32, num_blocks=1)))
    image, features, side = torch.rand(1, 3, 12, 12), torch.randn(1, 8, 6, 6), 12
    points = torch.tensor([[0.0, 0.0], [3.0, 7.0], [11.0, 11.0], [-5.0, 20.0]])
    found = network(image, features, side, points)
    queries = network.image_encoder(image, side)
    margin = WINDOW // 2
    keys, values = (
        functional.pad(item, (margin,) * 4) for item in (functional.adaptive_avg_pool2d(queries, (6, 6)), features)
    )
    for point, own in zip(points.clamp(0, 11).long().tolist(), found, strict=True):
        column, row = point
        window = (..., slice(row // 2, row // 2 + WINDOW), slice(column // 2, column // 2 + WINDOW))
        key, value = (item[window].reshape(1, 4, -1, WINDOW**2) for item in (keys, values))
        query = queries[:, :, row, column].view(1, 4, -1, 1)
        weights = (key * query).sum(2, keepdim=True).div(8**0.5).softmax(-1)
        torch.testing.assert_close(own, (value * weights).sum(-1).flatten())


def test_features_between_pixels_are_interpolated() -> None:
    network = random(FeatureUpsampler(FeatureUpsamplerConfig(hidden_size=32, num_blocks=1)))
    image, features = torch.rand(1, 3, 40, 40), torch.randn(1, 8, 2, 2)  # reduced first, being five times as large
    corners = network(image, features, 8, torch.tensor([[2.0, 5.0], [3.0, 5.0], [2.0, 6.0], [3.0, 6.0]]))
    (between,) = network(image, features, 8, torch.tensor([[2.25, 5.5]]))
    above, below = corners[0] * 0.75 + corners[1] * 0.25, corners[2] * 0.75 + corners[3] * 0.25
    torch.testing.assert_close(between, (above + below) / 2)
    assert network(image, features, 8, torch.empty(0, 2)).shape == (0, 8)
