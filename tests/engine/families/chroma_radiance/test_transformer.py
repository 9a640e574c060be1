"""Tests of Chroma Radiance's transformer: how many patches are drawn at once, and the forms of its files."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from darkroom.engine.families.chroma_radiance.transformer import (
    NUMBERING_OPTION,
    OPTIONS,
    TILE_OPTION,
    ChromaRadianceConfig,
    ChromaRadianceTransformer,
    chosen_options,
    chroma_radiance_config,
)

CONFIG = ChromaRadianceConfig(
    width=128, num_double=1, num_single=1, context_dim=16, approximator_width=16, approximator_layers=1,
    pixel_width=4, num_pixel_layers=1, pixel_factor=2, num_frequencies=2,
)  # fmt: skip


def network(config: ChromaRadianceConfig = CONFIG) -> ChromaRadianceTransformer:
    torch.manual_seed(0)
    made = ChromaRadianceTransformer(config)
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return made


@torch.no_grad()
def drawn(made: ChromaRadianceTransformer, tile: int | None = None) -> torch.Tensor:
    torch.manual_seed(1)
    x, text = torch.randn(2, 3, 40, 56), torch.randn(2, 5, 16)
    options = {} if tile is None else {OPTIONS: {TILE_OPTION: tile}}
    out: torch.Tensor = made(x, torch.tensor([0.7, 0.7]), text, None, None, options)
    return out


@pytest.mark.parametrize("tile", [0, 1, 5, 100])
def test_images_of_a_batch_do_not_depend_on_how_many_patches_are_drawn_at_once(tile: int) -> None:
    made = network()
    torch.testing.assert_close(drawn(made, tile), drawn(made), atol=1e-5, rtol=1e-5)


def test_a_network_that_predicts_the_image_returns_the_velocity_to_it() -> None:
    plain, other = network(), network(replace(CONFIG, predicts_image=True))
    torch.manual_seed(1)
    x = torch.randn(2, 3, 40, 56)
    torch.testing.assert_close(drawn(other), (x - drawn(plain)) / 0.7)


def test_places_of_the_text_change_the_image() -> None:
    assert not torch.allclose(drawn(network()), drawn(network(replace(CONFIG, numbers_text=True))))


@pytest.mark.parametrize(
    "config",
    [CONFIG, replace(CONFIG, has_conv_head=False), replace(CONFIG, predicts_image=True, numbers_text=True)],
)
def test_its_configuration_is_read_from_its_weights(config: ChromaRadianceConfig) -> None:
    shapes = {name: tuple(item.shape) for name, item in ChromaRadianceTransformer(config).state_dict().items()}
    assert chroma_radiance_config(shapes) == config


@pytest.mark.parametrize("options", [{"nerf_depth": 2}, {TILE_OPTION: -1}, {TILE_OPTION: "4"}, {TILE_OPTION: True}])
def test_other_options_are_refused_by_name(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        chosen_options(options, CONFIG)


def test_an_option_numbers_the_text_as_the_file_may_say_itself() -> None:
    assert chosen_options({NUMBERING_OPTION: True}, CONFIG) == chosen_options({}, replace(CONFIG, numbers_text=True))
    assert chosen_options({TILE_OPTION: 4}, CONFIG) == (4, False)
