"""ERNIE-Image's network: its shapes, the positions of image and text, and how channels turn."""

from __future__ import annotations

import math

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.base import TensorIndex
from darkroom.engine.families.ernie_image.transformer import (
    AXES,
    HEAD_DIM,
    ErnieImageConfig,
    ErnieImageTransformer,
    ernie_image_config,
    fellows_joined,
    positions_of,
    time_waves,
    turning,
)
from darkroom.engine.formats.unfilled import unfilled

FAMILY = registry.family_named("ernie_image")
CPU = torch.device("cpu")


@pytest.mark.parametrize("size", ["full", "small"])
@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_shapes_tell_the_network(size: str, prefix: str) -> None:
    with unfilled():
        network = ErnieImageTransformer(FAMILY.sizes[size])
    shapes = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    assert ernie_image_config(shapes) == FAMILY.sizes[size]
    index = TensorIndex({prefix + name: shape for name, shape in shapes.items()}, {})
    assert registry.recognise(index).family is FAMILY


def test_a_text_as_wide_as_the_network_is_not_projected() -> None:
    config = ErnieImageConfig(hidden_size=128, intermediate_size=32, num_layers=1, context_dim=128)
    with unfilled():
        network = ErnieImageTransformer(config)
    shapes = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    assert "text_proj.weight" not in shapes
    assert ernie_image_config(shapes) == config


def test_an_image_follows_its_text_on_the_first_axis() -> None:
    positions = positions_of(2, 2, 3, None, CPU)
    assert positions[:4].tolist() == [[3, row, column] for row in (0, 1) for column in (0, 1)]
    assert positions[4:].tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]


def test_an_images_positions_are_scaled_and_shifted_as_asked() -> None:
    asked = {"scale_y": 2.0, "shift_y": 1.0, "scale_x": 0.5, "shift_x": -1.0, "shift_t": 4.0}
    positions = positions_of(2, 2, 1, {"rope_options": asked}, CPU)
    assert positions.tolist() == [[5, 1, -1], [5, 1, -0.5], [5, 3, -1], [5, 3, -0.5], [0, 0, 0]]


def test_fellow_channels_turn_by_angles_of_their_own() -> None:
    matrices = turning(torch.tensor([[2.0, 3.0, 5.0]]))[0, 0, 0]
    frequencies = [256.0 ** -(2 * pair / channels) for channels in AXES for pair in range(channels // 2)]
    angles = [
        place * frequency for place, frequency in zip([2.0] * 16 + [3.0] * 24 + [5.0] * 24, frequencies, strict=True)
    ]
    assert matrices.shape == (HEAD_DIM // 2, 2, 2)
    for channel in (0, 1, 33, 63):
        first, second = angles[channel // 2], angles[HEAD_DIM // 4 + channel // 2]
        expected = [[math.cos(first), -math.sin(first)], [math.sin(second), math.cos(second)]]
        torch.testing.assert_close(matrices[channel], torch.tensor(expected), rtol=0, atol=1e-6)


def test_fellows_stand_beside_each_other() -> None:
    assert fellows_joined(torch.arange(6)).tolist() == [0, 3, 1, 4, 2, 5]


def test_times_are_sines_before_cosines() -> None:
    assert time_waves(torch.tensor([0.0]), 6).tolist() == [[0, 0, 0, 1, 1, 1]]


@torch.no_grad()
def test_items_of_a_batch_do_not_read_each_other() -> None:
    torch.manual_seed(0)
    config = ErnieImageConfig(hidden_size=128, intermediate_size=64, num_layers=2, context_dim=24, in_channels=8)
    network = ErnieImageTransformer(config).eval()
    for weight in network.parameters():
        torch.nn.init.normal_(weight, 0, 0.1)
    x, times, text = torch.randn(2, 8, 3, 4), torch.tensor([900.0, 300.0]), torch.randn(2, 5, 24)
    both = network(x, times, text)
    assert both.shape == x.shape
    torch.testing.assert_close(both[1:], network(x[1:], times[1:], text[1:]), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(both[1:], network(x[1:], times[1:], text[:1]), atol=1e-3)
