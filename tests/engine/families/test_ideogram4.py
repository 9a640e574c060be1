"""Ideogram 4: its noise levels, positions of text and image, padding of the text, and the layers that it reads."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.base import TensorIndex
from darkroom.engine.families.ideogram4.nodes import ideogram4_sigmas
from darkroom.engine.families.ideogram4.text import LAYERS, Ideogram4Encoder
from darkroom.engine.families.ideogram4.transformer import (
    Ideogram4Config,
    Ideogram4Transformer,
    ideogram4_config,
    packed_of_tokens,
    positions_of,
    segment_mask,
    tokens_of_packed,
)
from darkroom.engine.formats.unfilled import unfilled

FAMILY = registry.family_named("ideogram4")
# Of the published formula: four steps at 1024x1024, a mean of 0 and a deviation of 1.75.
PUBLISHED = [0.9998766054240138, 0.8668632271877241, 0.6666666666666666, 0.38055106799839133, 0.0]
TINY = Ideogram4Config(
    hidden_size=256, head_dim=128, intermediate_size=64, num_layers=2, adaln_dim=16, context_dim=24, in_channels=16
)


@pytest.mark.parametrize("size", ["full", "small"])
def test_shapes_tell_the_network(size: str) -> None:
    with unfilled():
        network = Ideogram4Transformer(FAMILY.sizes[size])
    shapes = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    assert ideogram4_config(shapes) == FAMILY.sizes[size]
    for prefix in ("", "model.diffusion_model."):
        index = TensorIndex({prefix + name: shape for name, shape in shapes.items()}, {})
        assert registry.recognise(index).family is FAMILY


def test_noise_levels_are_those_of_the_published_schedule() -> None:
    torch.testing.assert_close(ideogram4_sigmas(4, 1024, 1024, 0.0, 1.75), torch.tensor(PUBLISHED), rtol=0, atol=1e-6)
    few = ideogram4_sigmas(2, 256, 512, 0.5, 1.0)
    assert few[0] > few[1] > few[2] == 0.0
    assert float(few[1]) == pytest.approx(0.5382815)


def test_larger_images_have_more_noise() -> None:
    small, large = ideogram4_sigmas(8, 512, 512, 0.0, 1.75), ideogram4_sigmas(8, 2048, 2048, 0.0, 1.75)
    assert (large[1:-1] > small[1:-1]).all() and (small.diff() < 0).all()


def test_an_image_lies_far_behind_its_text() -> None:
    positions = positions_of(2, 2, 3, torch.device("cpu"))
    assert positions[:, :2].tolist() == [[0, 1]] * 3
    assert (positions[:, 2:] - 65536).tolist() == [[0] * 6, [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]


def test_packed_cells_are_tokens_with_channels_innermost() -> None:
    latent = torch.arange(2 * 4 * 2.0).view(1, 8, 1, 2)  # two channels of four cells each, at two places
    tokens = tokens_of_packed(latent)
    assert tokens[0, 0].tolist() == [0, 8, 2, 10, 4, 12, 6, 14]
    assert torch.equal(packed_of_tokens(tokens, 1, 2), latent)


def _network() -> Ideogram4Transformer:
    torch.manual_seed(0)
    network = Ideogram4Transformer(TINY).requires_grad_(False).eval()
    for weight in network.parameters():
        torch.nn.init.normal_(weight, 0, 0.05)
    return network


@torch.no_grad()
def test_padding_of_a_text_changes_nothing() -> None:
    network, x, times = _network(), torch.randn(1, 16, 4, 6), torch.tensor([0.4])
    text = torch.randn(1, 5, 24)
    plain = network(x, times, text)
    padded = torch.cat([text, torch.randn(1, 3, 24)], dim=1)
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0]])
    torch.testing.assert_close(network(x, times, padded, attention_mask=mask), plain, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(network(x, times, padded), plain, atol=1e-3)


@torch.no_grad()
def test_an_image_is_drawn_without_a_text() -> None:
    network, x, times = _network(), torch.randn(2, 16, 4, 6), torch.tensor([0.4, 0.4])
    alone = network(x, times)
    assert alone.shape == x.shape
    assert not torch.allclose(alone, network(x, times, torch.randn(2, 5, 24)), atol=1e-3)


def test_padding_and_the_rest_do_not_see_each_other() -> None:
    mask = segment_mask(torch.tensor([[1, 0]]), 1, torch.float32)[0, 0]
    assert (mask == 0).tolist() == [[True, False, True], [False, True, False], [True, False, True]]


class _Model:
    """A model whose states are numbered by layer and channel."""

    def norm(self, states: torch.Tensor) -> torch.Tensor:
        return states + 0.5

    def chosen_states(self, layers: Any, embeds: torch.Tensor, mask: Any, **_: Any) -> torch.Tensor:
        return torch.stack([embeds + 100 * layer for layer in layers], dim=1)


def test_layers_lie_beside_each_other_channel_by_channel_and_the_last_is_normed() -> None:
    encoder: Any = object.__new__(Ideogram4Encoder)
    torch.nn.Module.__init__(encoder)
    encoder.layers = LAYERS
    encoder.transformer = type("Network", (), {"model": _Model()})()
    found = encoder._states(torch.tensor([[[1.0, 2.0]]]), None, None, None, ())
    first, second = found.view(2, 13)
    assert first.tolist() == [*(1.0 + 100 * layer for layer in LAYERS[:-1]), 3601.5]
    assert torch.equal(second, first + 1)
