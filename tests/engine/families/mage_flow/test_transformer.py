"""Mage-Flow's network: its shapes, the positions of its cells, and what it reads of reference images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.base import TensorIndex
from darkroom.engine.families.mage_flow.transformer import (
    MageFlowConfig,
    MageFlowTransformer,
    RoundedTimeEmbedder,
    mage_flow_config,
    positions_of,
)
from darkroom.engine.formats.unfilled import unfilled

FAMILY = registry.family_named("mage_flow")
TINY = MageFlowConfig(width=128, num_blocks=2, context_dim=24, in_channels=8, out_channels=8)


@pytest.mark.parametrize("size", ["full", "small"])
@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_shapes_tell_the_network(size: str, prefix: str) -> None:
    with unfilled():
        network = MageFlowTransformer(FAMILY.sizes[size])
    shapes = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    assert mage_flow_config(shapes) == FAMILY.sizes[size]
    index = TensorIndex({prefix + name: shape for name, shape in shapes.items()}, {})
    assert registry.recognise(index).family is FAMILY


def test_positions_count_from_behind_the_middle() -> None:
    positions = positions_of(torch.empty(1, 8, 3, 2), 4)
    assert positions.tolist() == [[4, row, column] for row in (-2, -1, 0) for column in (-1, 0)]


def test_frequencies_of_the_time_have_the_digits_of_bfloat16() -> None:
    embedder = RoundedTimeEmbedder(4)
    for name in ("linear_1", "linear_2"):
        layer = embedder.timestep_embedder[name]
        assert isinstance(layer, torch.nn.Linear)
        torch.nn.init.zeros_(layer.bias)
        torch.nn.init.eye_(layer.weight)
    rounded = torch.exp(torch.tensor(-9.2103404 / 128)).to(torch.bfloat16).float()
    waves = torch.cos(torch.stack([torch.tensor(1.0), rounded]) * 250.0)
    torch.testing.assert_close(
        embedder(torch.tensor([0.25]), torch.float32)[0, :2], torch.nn.functional.silu(waves), rtol=0, atol=1e-4
    )


@pytest.fixture
def network() -> MageFlowTransformer:
    torch.manual_seed(0)
    made = MageFlowTransformer(TINY).requires_grad_(False).eval()
    for weight in made.parameters():
        torch.nn.init.normal_(weight, 0, 0.1)
    return made


@torch.no_grad()
def test_each_reference_has_an_index_of_its_own(network: MageFlowTransformer) -> None:
    x, times, text = torch.randn(1, 8, 4, 3), torch.tensor([0.5]), torch.randn(1, 5, 24)
    first, second = torch.randn(1, 8, 4, 3), torch.randn(1, 8, 2, 5)
    alone = network(x, times, text)
    assert alone.shape == x.shape
    both = network(x, times, text, ref_latents=[first, second])
    assert not torch.allclose(both, alone, atol=1e-3)
    assert not torch.allclose(both, network(x, times, text, ref_latents=[second, first]), atol=1e-4)


@torch.no_grad()
def test_patches_of_custom_nodes_get_the_streams(network: MageFlowTransformer) -> None:
    seen: dict[str, Any] = {}

    def patch(streams: dict[str, Any]) -> dict[str, Any]:
        seen.update(streams)
        return {"txt": streams["txt"] * 2}

    x, times, text = torch.randn(2, 8, 4, 3), torch.tensor([0.5, 0.5]), torch.randn(2, 5, 24)
    options: dict[str, dict[str, list[Callable[[dict[str, Any]], dict[str, Any]]]]]
    options = {"patches": {"post_input": [patch]}}
    changed = network(x, times, text, None, None, options, ref_latents=[torch.randn(2, 8, 2, 2)])
    assert seen["img"].shape == (2, 16, 128) and seen["img_ids"].shape == (2, 16, 3)
    assert seen["transformer_options"]["reference_image_num_tokens"] == [4]
    assert not torch.allclose(changed, network(x, times, text), atol=1e-3)
