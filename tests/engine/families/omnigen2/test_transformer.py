"""Next-DiT with reference images: their places, their order, sizes, and the configuration from shapes."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.families.omnigen2.layers import OmniGen2Config, omnigen2_config
from darkroom.engine.families.omnigen2.transformer import OmniGen2Transformer

CONFIG = OmniGen2Config(
    width=240, heads=2, key_heads=1, inner_width=64, num_layers=1, context_dim=24, time_width=40, num_refiners=1,
    in_channels=4, num_references=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def network() -> OmniGen2Transformer:
    torch.manual_seed(0)
    made = OmniGen2Transformer(CONFIG).requires_grad_(False)
    for name, weight in made.named_parameters():
        weight.normal_(0.0, 0.1)
        if "norm" in name:
            weight.add_(1.0)
    return made


def latent(height: int, width: int, seed: int = 1, batch: int = 1) -> torch.Tensor:
    return torch.randn(batch, 4, height, width, generator=torch.Generator().manual_seed(seed))


TIME = torch.tensor([0.6])
TEXT = torch.randn(1, 5, 24, generator=torch.Generator().manual_seed(2))


def test_a_latent_of_odd_size_is_padded_and_cut_again(network: OmniGen2Transformer) -> None:
    odd, reference = latent(5, 7), latent(3, 5, seed=3)
    padded, padded_reference = (
        torch.nn.functional.pad(item, (0, 1, 0, 1), mode="circular") for item in (odd, reference)
    )
    drawn = network(odd, TIME, TEXT, ref_latents=[reference])
    assert torch.equal(drawn, network(padded, TIME, TEXT, ref_latents=[padded_reference])[..., :5, :7])


def test_every_reference_image_counts_and_so_does_their_order(network: OmniGen2Transformer) -> None:
    x, first, second = latent(6, 8), latent(4, 4, seed=3), latent(4, 4, seed=4)
    drawn = [
        network(x, TIME, TEXT, ref_latents=references) for references in ([], [first], [first, second], [second, first])
    ]
    assert all(item.shape == x.shape for item in drawn)
    for index, item in enumerate(drawn):
        assert not any(torch.allclose(item, other, atol=1e-4) for other in drawn[index + 1 :])


def test_images_are_placed_behind_the_longer_side_of_those_before(network: OmniGen2Transformer) -> None:
    text, wide, drawn = network._places(5, [latent(4, 12), latent(6, 8)])
    alone = network._places(5 + 6, [latent(6, 8)])[1]
    assert (text.shape[2], wide.shape[2], drawn.shape[2]) == (5, 12, 12)
    assert torch.equal(drawn, alone)


def test_more_images_than_the_network_counts_are_refused(network: OmniGen2Transformer) -> None:
    with pytest.raises(ValueError, match="reference latents: too many; got 3, expected at most 2"):
        network(latent(4, 4), TIME, TEXT, ref_latents=[latent(4, 4)] * 3)


def test_every_item_of_a_batch_is_drawn_as_alone(network: OmniGen2Transformer) -> None:
    x, references, text = latent(4, 6, batch=2), latent(4, 4, seed=3, batch=2), torch.cat([TEXT, -TEXT])
    drawn = network(x, TIME.repeat(2), text, ref_latents=[references])
    for row in (slice(0, 1), slice(1, 2)):
        alone = network(x[row], TIME, text[row], ref_latents=[references[row]])
        torch.testing.assert_close(drawn[row], alone, atol=1e-4, rtol=1e-4)


def test_the_configuration_is_read_from_the_shapes() -> None:
    shapes = {name: tuple(item.shape) for name, item in OmniGen2Transformer(CONFIG).state_dict().items()}
    assert omnigen2_config(shapes) == CONFIG
