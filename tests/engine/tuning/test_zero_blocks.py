"""Blocks that add nothing are left out, to the bit."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from darkroom.engine.layers.unet_layers import CrossAttention, ResBlock, SpatialTransformer
from darkroom.engine.layers.vae_kl import ResnetBlock
from darkroom.engine.tuning.strategies.zero_blocks import ZeroBlocks
from darkroom.engine.tuning.strategy import SamplingUse
from tests.engine.tuning.test_strategies import Patcher, call, networks, use

__all__ = ["networks", "use"]


def of_kind(network: nn.Module, kind: type[nn.Module]) -> Any:
    """Return a block of a kind, neither the first nor the last."""
    return [module for module in network.modules() if type(module) is kind][1]


@pytest.fixture
def ends(networks: tuple[Any, Any]) -> Iterator[list[nn.Module]]:
    """Last layers of a block of each kind, with zeros as weights."""
    unet, vae = networks[0].diffusion_model, networks[1]
    found = [
        of_kind(unet, ResBlock).out_layers[-1],
        of_kind(unet, SpatialTransformer).proj_out,
        of_kind(unet, CrossAttention).to_out[0],
        of_kind(vae.decoder, ResnetBlock).conv2,
    ]
    weights = [[parameter.clone() for parameter in layer.parameters()] for layer in found]
    with torch.inference_mode(False), torch.no_grad():
        for layer in found:
            for parameter in layer.parameters():
                parameter.zero_()
        yield found
        for layer, before in zip(found, weights, strict=True):
            for parameter, value in zip(layer.parameters(), before, strict=True):
                parameter.copy_(value)


def num_left_out(network: nn.Module) -> int:
    return sum("forward" in vars(module) for module in network.modules())


def test_blocks_that_add_nothing_are_left_out_to_the_bit(ends: list[nn.Module], use: SamplingUse) -> None:
    strategy, plain = ZeroBlocks(), call(use)
    assert strategy.unfit(use) is None
    undo = strategy.apply(use)
    assert num_left_out(use.network) == 3
    assert torch.equal(call(use), plain)
    undo()


def test_a_patch_of_such_a_block_is_computed(ends: list[nn.Module], use: SamplingUse) -> None:
    strategy = ZeroBlocks()
    assert strategy.unfit(use) is None
    for layer in ends[:3]:
        layer.get_parameter("weight")[-1].fill_(0.5)  # as a LoRA would; its first row stays zero
    assert strategy.unfit(use) == "the network has no block that adds nothing"


def test_a_decoder_and_a_copy_of_it_in_another_type(ends: list[nn.Module], networks: tuple[Any, Any]) -> None:
    vae = networks[1]
    latent = torch.randn(1, 4, 8, 8)
    with torch.inference_mode():
        plain, narrow = vae.decode(latent), copy.deepcopy(vae).bfloat16().decode(latent.bfloat16())
        undo = ZeroBlocks().apply(SamplingUse(Patcher(vae), vae, {}))
        assert num_left_out(vae) == 1
        found, copied = vae.decode(latent), copy.deepcopy(vae).bfloat16()
        undo()
        assert torch.equal(found, plain)
        assert torch.equal(copied.decode(latent.bfloat16()), narrow)


def test_an_ordinary_network_has_none(use: SamplingUse) -> None:
    assert ZeroBlocks().unfit(use) == "the network has no block that adds nothing"
