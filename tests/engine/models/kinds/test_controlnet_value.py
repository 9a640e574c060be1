"""Hints of ControlNets that read latents, and masks beside the image."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.models.kinds.controlnet_value import ControlNet, T2IAdapter
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.library.conditioning.controlnet import controlnet_inpainting_alimama_apply
from tests.engine.nodes.small_store import node_context, small_store


@pytest.fixture
def context(tmp_path: Path) -> NodeContext:
    return node_context(small_store(tmp_path))


class PassThrough(torch.nn.Module):
    """A control network that gives its hint back as its only addition."""

    dtype = torch.float32

    def forward(self, x: torch.Tensor, hint: torch.Tensor, **kwargs: Any) -> dict[str, list[torch.Tensor]]:
        return {"middle": [hint.clone()], "output": []}


class SmallVae:
    """A VAE whose latent is the mean of 8 x 8 pixels, in four equal channels."""

    def spacial_compression_encode(self) -> int:
        return 8

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        grey = pixels.movedim(-1, 1).mean(dim=1, keepdim=True)
        return torch.nn.functional.avg_pool2d(grey, 8).repeat(1, 4, 1, 1)


class Sampling:
    def timestep(self, sigma: torch.Tensor) -> torch.Tensor:
        return sigma

    def calculate_input(self, sigma: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return noise


def latent_net(**options: Any) -> ControlNet:
    return ControlNet(PassThrough(), compression_ratio=1, latent_format=LatentFormat(), **options)


def hint_of(net: ControlNet, batch: int = 1) -> torch.Tensor:
    net.model_sampling_current = Sampling()
    x = torch.zeros(batch, 4, 4, 6)
    control = net.get_control(x, torch.ones(batch), {"c_crossattn": torch.zeros(batch, 1, 8)}, 1, {})
    assert control is not None
    (addition,) = control["middle"]
    assert addition is not None
    return addition


def image() -> torch.Tensor:
    return torch.rand(1, 3, 40, 60, generator=torch.Generator().manual_seed(0))


def test_a_network_that_reads_latents_gets_the_encoded_image_at_the_latents_size() -> None:
    net = latent_net().set_cond_hint(image(), vae=SmallVae())
    assert isinstance(net, ControlNet)
    hint = hint_of(net)
    resized = torch.nn.functional.interpolate(image(), size=(32, 48), mode="nearest-exact")
    expected = LatentFormat().process_in(SmallVae().encode(resized.movedim(1, -1)))
    torch.testing.assert_close(hint, expected)


def test_the_image_is_encoded_once_for_all_steps() -> None:
    net = latent_net().set_cond_hint(image(), vae=SmallVae())
    assert isinstance(net, ControlNet)
    hint_of(net)
    first = net.cond_hint
    hint_of(net)
    assert net.cond_hint is first


def test_a_network_that_reads_latents_is_refused_without_a_vae(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        net = latent_net().set_cond_hint(image())
    assert "no VAE provided" in caplog.text
    assert isinstance(net, ControlNet)
    with pytest.raises(ValueError, match="got no VAE"):
        hint_of(net)


def test_a_network_that_reads_a_mask_gets_ones_where_a_node_gives_none() -> None:
    net = latent_net(concat_mask=True).set_cond_hint(image(), vae=SmallVae())
    assert isinstance(net, ControlNet)
    hint = hint_of(net)
    assert hint.shape == (1, 5, 4, 6) and bool((hint[:, 4] == 1).all())


def test_the_inpainting_node_hides_the_masked_part_and_hands_the_rest_on_as_a_mask(context: NodeContext) -> None:
    net = latent_net(concat_mask=True)
    mask = torch.zeros(1, 40, 60)
    mask[:, :, :30] = 1.0
    positive, _ = controlnet_inpainting_alimama_apply(
        context, positive=[[torch.zeros(1, 1, 8), {}]], negative=[], control_net=net, vae=SmallVae(),
        image=torch.ones(1, 40, 60, 3), mask=mask, strength=1.0, start_percent=0.0, end_percent=1.0,
    )  # fmt: skip
    hint = hint_of(positive[0][1]["control"])
    assert bool((hint[:, 4, :, :3] == 0).all()) and bool((hint[:, 4, :, 3:] == 1).all())
    torch.testing.assert_close(hint[0, :4] / LatentFormat().process_in(torch.ones(1)), hint[0, 4:].expand(4, -1, -1))


def test_the_inpainting_node_leaves_the_image_alone_for_a_network_without_a_mask(context: NodeContext) -> None:
    positive, _ = controlnet_inpainting_alimama_apply(
        context, positive=[[torch.zeros(1, 1, 8), {}]], negative=[], control_net=latent_net(), vae=SmallVae(),
        image=torch.ones(1, 40, 60, 3), mask=torch.ones(1, 40, 60), strength=1.0, start_percent=0.0, end_percent=1.0,
    )  # fmt: skip
    hint = hint_of(positive[0][1]["control"])
    assert hint.shape == (1, 4, 4, 6) and bool((hint != 0).all())


def test_an_image_with_too_few_channels_is_refused_by_its_number() -> None:
    class FourChannels(torch.nn.Module):
        unshuffle_amount = 8

    adapter = T2IAdapter(FourChannels(), 4)
    adapter.set_cond_hint(torch.zeros(1, 3, 32, 32))
    with pytest.raises(ValueError, match="got 3, expected 4"):
        adapter.get_control(torch.zeros(1, 4, 4, 4), torch.ones(1), {}, 1, {})
