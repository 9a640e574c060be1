"""Group normalisation as one kernel that keeps channels innermost, with the SiLU behind it where there is one.

torch's group normalisation on CUDA changes the layout, which the convolution behind it changes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.unet import UnetModel
from darkroom.engine.layers.unet_layers import ResBlock, SpatialTransformer
from darkroom.engine.layers.vae_kl import AttnBlock, Decoder, Encoder, ResnetBlock
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategy import MachineFacts, SamplingUse, Strategy, Undo, has_own_forward, replace_forwards
from darkroom.engine.tuning.triton_compiler import missing_triton

NormAndActivations = tuple[nn.Module, tuple[nn.Module, ...]]
"""A group normalisation, and the module that is called with nothing but its result; () where there is none."""


class _NhwcNorm(Strategy):
    """Base of both strategies, which differ in the networks that they are for."""

    quality = Quality.SAME

    def missing(self, machine: MachineFacts) -> str | None:
        return missing_triton(machine)

    def unfit(self, use: SamplingUse) -> str | None:
        return None if _fitting(use) else "the network has no group normalisation of this kind"

    def apply(self, use: SamplingUse) -> Undo:
        changes: list[tuple[nn.Module, Callable[..., torch.Tensor]]] = []
        for norm, silus in _fitting(use):
            changes.append((norm, _fused(norm, with_silu=bool(silus))))
            changes += [(silu, _identity) for silu in silus]
        return replace_forwards(changes)


class NhwcGroupNorm(_NhwcNorm):
    """Group normalisation of a UNet's residual blocks, spatial transformers and output."""

    name = "nhwc_group_norm"
    about = "group normalisation and SiLU in one kernel that keeps channels innermost"
    conflicts = frozenset({"compiled_blocks"})


class NhwcVae(_NhwcNorm):
    """Group normalisation of a VAE's blocks.

    Not where other requests may begin to decode meanwhile: a VAE decodes beside them, and between a norm and the
    activation that is a part of it no change may be taken off the network.
    """

    name = "nhwc_vae"
    about = "group normalisation and SiLU of the VAE in one kernel that keeps channels innermost"
    target = "vae"
    conflicts = frozenset({"half_vae"})  # which computes with another network

    def unfit(self, use: SamplingUse) -> str | None:
        return "other requests may compute at the same time" if use.may_share else super().unfit(use)


def _fitting(use: SamplingUse) -> list[NormAndActivations]:
    """Return the norms whose kernel can take their place: those of blocks of which nothing has replaced a part."""
    blocks = (list(_norms_of(block)) for block in use.network.modules())
    return [item for norms in blocks if all(_is_plain(*item) for item in norms) for item in norms]


def _is_plain(norm: nn.Module, silus: tuple[nn.Module, ...]) -> bool:
    is_known = isinstance(norm, nn.GroupNorm) and all(isinstance(silu, nn.SiLU) for silu in silus)
    return is_known and not any(has_own_forward(part) for part in (norm, *silus))


def _norms_of(block: nn.Module) -> Iterator[NormAndActivations]:
    """Yield the norms of one block. Modules that stand behind several norms are named with each of them."""
    if type(block) is ResBlock:
        yield block.in_layers[0], (block.in_layers[1],)
        yield block.out_layers[0], (block.out_layers[1],)
    elif type(block) is SpatialTransformer:
        yield block.norm, ()
    elif isinstance(block, UnetModel):
        yield block.out[0], (block.out[1],)
    elif isinstance(block, ResnetBlock):
        yield block.norm1, (block.swish,)
        yield block.norm2, (block.swish,)
    elif isinstance(block, AttnBlock):
        yield block.norm, ()
    elif isinstance(block, (Encoder, Decoder)):
        yield block.norm_out, (block.swish,)


def _identity(x: torch.Tensor) -> torch.Tensor:
    return x


def _fused(norm: nn.Module, *, with_silu: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    from darkroom.engine.tuning.kernels.group_norm import group_norm_silu  # Triton is there on GPU machines alone

    assert isinstance(norm, nn.GroupNorm)
    plain = type(norm).forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        if x.ndim != 4 or not x.is_contiguous(memory_format=torch.channels_last) or x.shape[1] == 1:
            out = plain(norm, x)
            return functional.silu(out) if with_silu else out
        return group_norm_silu(x, norm.num_groups, norm.weight, norm.bias, norm.eps, with_silu=with_silu)

    return forward
