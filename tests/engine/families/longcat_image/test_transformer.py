"""LongCat-Image's network: its shapes, and where its image begins."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.base import TensorIndex
from darkroom.engine.families.longcat_image.transformer import (
    LongCatImageConfig,
    LongCatImageTransformer,
    behind_text,
    longcat_image_config,
)
from darkroom.engine.formats.unfilled import unfilled

FAMILY = registry.family_named("longcat_image")


@pytest.mark.parametrize("size", ["full", "small"])
@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_shapes_tell_the_network(size: str, prefix: str) -> None:
    with unfilled():
        network = LongCatImageTransformer(FAMILY.sizes[size])
    shapes = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    assert longcat_image_config(shapes) == FAMILY.sizes[size]
    index = TensorIndex({prefix + name: shape for name, shape in shapes.items()}, {})
    assert registry.recognise(index).family is FAMILY


def test_an_image_begins_where_its_text_ends_unless_asked_otherwise() -> None:
    assert behind_text({}, 7)["rope_options"] == {"shift_t": 1.0, "shift_y": 7.0, "shift_x": 7.0}
    asked = behind_text({"rope_options": {"shift_y": 2.0, "scale_x": 3.0}}, 7)["rope_options"]
    assert asked == {"shift_t": 1.0, "shift_y": 2.0, "shift_x": 7.0, "scale_x": 3.0}


@pytest.fixture
def network() -> LongCatImageTransformer:
    torch.manual_seed(0)
    config = LongCatImageConfig(width=128, num_double=1, num_single=1, context_dim=24, in_channels=4)
    made = LongCatImageTransformer(config).requires_grad_(False).eval()
    for weight in made.parameters():
        torch.nn.init.normal_(weight, 0, 0.1)
    return made


@torch.no_grad()
def test_text_and_image_lie_on_one_diagonal(network: LongCatImageTransformer) -> None:
    seen: dict[str, Any] = {}

    def patch(streams: dict[str, Any]) -> dict[str, Any]:
        seen.update(streams)
        return streams

    x, times, text = torch.randn(1, 4, 3, 4), torch.tensor([0.5]), torch.randn(1, 5, 24)
    options: dict[str, Any] = {"patches": {"post_input": [patch]}}
    assert network(x, times, text, None, None, options).shape == x.shape
    assert seen["txt_ids"][0].tolist() == [[0, index, index] for index in range(5)]
    assert seen["img_ids"][0].tolist() == [[1, row, column] for row in (5, 6) for column in (5, 6)]


@torch.no_grad()
def test_references_are_placed_by_a_method(network: LongCatImageTransformer) -> None:
    x, times, text = torch.randn(1, 4, 4, 4), torch.tensor([0.5]), torch.randn(1, 5, 24)
    references = [torch.randn(1, 4, 4, 2), torch.randn(1, 4, 2, 2)]
    alone, beside, by_index = (
        network(x, times, text),
        network(x, times, text, ref_latents=references),
        network(x, times, text, ref_latents=references, ref_latents_method="index"),
    )
    assert not torch.allclose(alone, beside, atol=1e-3) and not torch.allclose(beside, by_index, atol=1e-4)
