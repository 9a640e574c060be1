"""Mage-VAE: its files, windows of its attention, and what its latents and images depend on."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.families.mage_flow.vae import MageVae, mage_vae_config
from darkroom.engine.families.mage_flow.vae_files import MAGE_VAE, published_layout
from darkroom.engine.families.mage_flow.vae_layers import CellBlock, WindowAttention
from darkroom.engine.formats.unfilled import unfilled


@pytest.mark.parametrize("size", ["full", "small"])
def test_shapes_tell_the_autoencoder(size: str) -> None:
    with unfilled():
        network = MageVae(MAGE_VAE.sizes[size])
    shapes = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    assert mage_vae_config(shapes) == MAGE_VAE.sizes[size]


def test_published_files_hold_an_autoencoder_that_is_left_out() -> None:
    with unfilled():
        network = MageVae(MAGE_VAE.sizes["small"])
    theirs = {"dconv_encoder.": "student.dconv_encoder.", "decoder_model.": "pipeline."}
    shapes: dict[str, tuple[int, ...]] = {"pipeline.y_embedder.encoder.conv_in.weight": (8, 3, 3, 3)}
    for name, weight in network.state_dict().items():
        prefix = next(item for item in theirs if name.startswith(item))
        shapes[theirs[prefix] + name.removeprefix(prefix)] = tuple(weight.shape)
    names = published_layout(shapes)
    assert names is not None and names.keys() == network.state_dict().keys()
    assert names["decoder_model.t_embedder.mlp.0.weight"] == "pipeline.t_embedder.mlp.0.weight"
    assert published_layout(dict.fromkeys(network.state_dict(), (1,))) is None


def _filled(network: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    for weight in network.requires_grad_(False).parameters():
        torch.nn.init.normal_(weight, 0, 0.1)
    return network.eval()


@torch.no_grad()
def test_cells_of_other_windows_are_not_read() -> None:
    layer = _filled(WindowAttention(32))
    image = torch.randn(1, 32, 33, 64)
    marked = image.clone()
    marked[:, :, :32, 40] += torch.randn(32, 32)
    normed_alike = torch.nn.Identity()
    layer.norm = normed_alike
    before, after = layer(image), layer(marked)
    assert before.shape == image.shape
    assert torch.equal(before[:, :, :32, :32], after[:, :, :32, :32])
    assert torch.equal(before[:, :, 32:], after[:, :, 32:])
    assert not torch.allclose(before[:, :, 0, 50], after[:, :, 0, 50], atol=1e-4)


@torch.no_grad()
def test_a_block_reads_the_mean_of_all_cells() -> None:
    block = _filled(CellBlock(8, 2, is_timed=False))
    image = torch.randn(1, 8, 6, 6)
    changed = image.clone()
    changed[..., 5, 5] = torch.randn(8) * 4
    assert not torch.equal(block(image)[..., 0, 0], block(changed)[..., 0, 0])


@torch.no_grad()
def test_images_and_latents_have_sixteen_pixels_a_cell() -> None:
    network = MageVae(MAGE_VAE.sizes["small"])
    _filled(network)
    latents = network.encode(torch.randn(2, 3, 48, 32))
    assert latents.shape == (2, 128, 3, 2)
    images = network.decode(latents)
    assert images.shape == (2, 3, 48, 32)
    assert torch.allclose(images[:1], network.decode(latents[:1]), atol=1e-5)
