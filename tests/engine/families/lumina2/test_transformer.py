"""Next-DiT: patches, places, text that is not read, filling, and the configuration from shapes."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.families.lumina2.layers import FLOAT32_EPS, Lumina2Config, lumina2_config
from darkroom.engine.families.lumina2.transformer import Lumina2Transformer, filled_up, image_places, text_places
from darkroom.engine.layers.patches import image_channels_last, patches_channels_last

LUMINA = Lumina2Config(
    width=192, heads=2, key_heads=1, inner_width=64, num_layers=1, context_dim=24, time_width=40, time_inner=48,
    num_refiners=1, in_channels=4,
)  # fmt: skip
Z_IMAGE = Lumina2Config(
    width=256, heads=2, key_heads=2, inner_width=64, num_layers=1, context_dim=24, time_width=40, time_inner=48,
    num_refiners=1, in_channels=4, axes=(32, 48, 48), theta=256.0, time_factor=1000.0, activates_time=False,
    pads_tokens=True, query_eps=FLOAT32_EPS,
)  # fmt: skip
both = pytest.mark.parametrize("config", [LUMINA, Z_IMAGE], ids=["lumina", "z_image"])


def network(config: Lumina2Config) -> Lumina2Transformer:
    torch.manual_seed(0)
    made = Lumina2Transformer(config).requires_grad_(False)
    for name, weight in made.named_parameters():
        weight.normal_(0.0, 0.1)
        if "norm" in name:
            weight.add_(1.0)
    return made


def inputs(height: int = 6, width: int = 8, batch: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    latent = torch.randn(batch, 4, height, width, generator=generator)
    return latent, torch.tensor([0.6]).repeat(batch), torch.randn(batch, 5, 24, generator=generator)


def test_patches_have_channels_innermost_and_become_the_image_again() -> None:
    latent = torch.arange(2 * 4 * 6.0).view(1, 2, 4, 6)
    tokens = patches_channels_last(latent)
    assert tokens.shape == (1, 6, 8)
    assert torch.equal(tokens[0, 4], latent[0, :, 2:4, 2:4].permute(1, 2, 0).flatten())
    assert torch.equal(image_channels_last(tokens, 4, 6), latent)


def test_text_counts_on_the_first_axis_and_the_image_stands_behind_it() -> None:
    assert text_places(2, 1, torch.device("cpu")).tolist() == [[[1, 0, 0], [2, 0, 0]]]
    assert image_places(2, 2, 7, torch.device("cpu")).tolist() == [[[7, 0, 0], [7, 0, 1], [7, 1, 0], [7, 1, 1]]]


def test_tokens_are_filled_up_to_a_multiple() -> None:
    tokens, filling = torch.zeros(2, 5, 3), torch.ones(1, 3)
    assert filled_up(tokens, filling, 4).sum(dim=-1).tolist() == [[0, 0, 0, 0, 0, 3, 3, 3]] * 2
    assert filled_up(tokens, filling, 5) is tokens


@both
def test_a_latent_of_odd_size_is_padded_and_cut_again(config: Lumina2Config) -> None:
    latent, time, text = inputs(5, 7)
    padded = torch.nn.functional.pad(latent, (0, 1, 0, 1), mode="circular")
    model = network(config)
    assert torch.equal(model(latent, time, text), model(padded, time, text)[..., :5, :7])


@both
def test_every_item_of_a_batch_is_drawn_as_alone(config: Lumina2Config) -> None:
    latent, time, text = inputs(batch=2)
    model = network(config)
    drawn = model(latent, time, text)
    for row in range(2):
        alone = model(latent[row : row + 1], time[:1], text[row : row + 1])
        torch.testing.assert_close(drawn[row : row + 1], alone, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(drawn[0], drawn[1], atol=1e-2)


@both
def test_every_token_of_the_text_is_read_whatever_mask_came_with_it(config: Lumina2Config) -> None:
    latent, time, text = inputs(batch=2)
    model = network(config)
    drawn = model(latent, time, text)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]])
    assert torch.equal(model(latent, time, text, num_tokens=3, attention_mask=mask), drawn)
    other = text.clone()
    other[:, -1] = 9.0
    assert not torch.allclose(model(latent, time, other), drawn, atol=1e-3)


@both
def test_the_configuration_is_read_from_the_shapes(config: Lumina2Config) -> None:
    shapes = {name: tuple(item.shape) for name, item in Lumina2Transformer(config).state_dict().items()}
    assert lumina2_config(shapes) == config
