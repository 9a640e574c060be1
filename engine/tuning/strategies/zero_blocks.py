"""Blocks left out that add nothing, because the weights of their last layer are zero.

A block that training added to a network, or did not reach, adds zero to what passes it by. The sum has the same bits
without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MethodType
from weakref import WeakKeyDictionary

import torch
from torch import nn

from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.unet_layers import CrossAttention, ResBlock, SpatialTransformer, TokenConvolution
from darkroom.engine.layers.vae_kl import ResnetBlock
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategy import (
    SamplingUse,
    Strategy,
    Undo,
    custom_code,
    has_own_forward,
    offloaded,
    replace_forwards,
)

LAYERS: tuple[type[nn.Module], ...] = (Linear, Conv2d, TokenConvolution)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

Forward = Callable[..., torch.Tensor]


class ZeroBlocks(Strategy):
    """Blocks that add zero are left out."""

    name = "zero_blocks"
    quality = Quality.EXACT
    about = "blocks whose last layer has only zeros as weights are left out"
    target = "any"
    is_certain = True

    def __init__(self) -> None:
        # Blocks that added nothing when a network was first seen: most have none, and none is looked at twice.
        self._blocks: WeakKeyDictionary[nn.Module, list[nn.Module]] = WeakKeyDictionary()

    def unfit(self, use: SamplingUse) -> str | None:
        found = custom_code(use) or offloaded(use)
        if found is None and not self._zero_blocks(use):
            return "the network has no block that adds nothing"
        return found

    def apply(self, use: SamplingUse) -> Undo:
        return replace_forwards(
            [
                # Methods, so that a copy of the network refers to its own blocks.
                (block, MethodType(PASSING[type(block)], block))
                for block in self._zero_blocks(use)
            ]
        )

    def _zero_blocks(self, use: SamplingUse) -> list[nn.Module]:
        """Return the blocks that add nothing with the weights of now, patches included."""
        if use.network not in self._blocks:
            self._blocks[use.network] = _adding_nothing(list(use.network.modules()))
        return _adding_nothing(self._blocks[use.network])


def _adding_nothing(blocks: list[nn.Module]) -> list[nn.Module]:
    """Return those of the modules whose last layer has only zeros. Waits once for the device, for most networks."""
    ends = [(block, layer) for block in blocks if (layer := _last_layer(block)) is not None]
    if not ends:
        return []
    begins_with_zeros = torch.stack([~layer.get_parameter("weight")[0].any() for _, layer in ends]).tolist()
    return [
        block for (block, layer), is_zero in zip(ends, begins_with_zeros, strict=True) if is_zero and _is_zero(layer)
    ]


def _last_layer(block: nn.Module) -> nn.Module | None:
    """Return the layer whose result a block adds to its input, None for other modules and for replaced ones."""
    if has_own_forward(block):
        return None
    layer: nn.Module
    if type(block) is ResBlock:
        layer = block.out_layers[-1]
    elif type(block) is ResnetBlock:
        layer = block.conv2
    elif type(block) is SpatialTransformer:
        layer = block.proj_out
    elif type(block) is CrossAttention:
        layer = block.to_out[0]
    else:
        return None
    is_plain = type(layer) in LAYERS and not has_own_forward(layer) and layer.get_parameter("weight").dtype in DTYPES
    return layer if is_plain else None


def _is_zero(layer: nn.Module) -> bool:
    return not any(bool(tensor.any()) for tensor in layer.parameters())


def _past_residual_block(block: ResBlock, x: torch.Tensor, emb: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = block.skip_connection(x)
    return out


def _past_vae_block(block: ResnetBlock, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = block.nin_shortcut(x)
    return out


def _past_transformer(
    block: SpatialTransformer, x: torch.Tensor, context: object = None, transformer_options: object = None
) -> torch.Tensor:
    return x


def _no_attention(block: CrossAttention, x: torch.Tensor, **beside: object) -> torch.Tensor:
    return x.new_zeros(()).expand_as(x)  # others add it


PASSING: Mapping[type[nn.Module], Forward] = {
    ResBlock: _past_residual_block,
    ResnetBlock: _past_vae_block,
    SpatialTransformer: _past_transformer,
    CrossAttention: _no_attention,
}
