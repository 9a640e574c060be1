"""Group normalisation and SiLU of residual blocks as one kernel that keeps channels innermost.

torch's group normalisation on CUDA changes the layout, which the convolution behind it changes back.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from engine.architectures.latent_unet_layers import ResBlock
from engine.tuning.quality import Quality
from engine.tuning.strategy import MachineFacts, SamplingUse, Strategy, Undo, has_own_forward, replace_forwards
from engine.tuning.triton_compiler import missing_triton


class NhwcGroupNorm(Strategy):
    """Group normalisation with SiLU in one Triton kernel."""

    name = "nhwc_group_norm"
    quality = Quality.SAME
    about = "group normalisation and SiLU in one kernel that keeps channels innermost"
    conflicts = frozenset({"compiled_blocks"})

    def missing(self, machine: MachineFacts) -> str | None:
        return missing_triton(machine)

    def unfit(self, use: SamplingUse) -> str | None:
        return None if _pairs(use) else "the network has no residual blocks of this kind"

    def apply(self, use: SamplingUse) -> Undo:
        changes: list[tuple[nn.Module, Callable[..., torch.Tensor]]] = []
        for norm, silu in _pairs(use):
            changes += [(norm, _fused(norm)), (silu, _identity)]
        return replace_forwards(changes)


def _pairs(use: SamplingUse) -> list[tuple[nn.GroupNorm, nn.SiLU]]:
    blocks = [block for block in use.network.modules() if type(block) is ResBlock]
    rows = [row for block in blocks for row in (block.in_layers, block.out_layers)]
    return [
        (row[0], row[1])
        for row in rows
        if isinstance(row[0], nn.GroupNorm)
        and isinstance(row[1], nn.SiLU)
        and not has_own_forward(row[0])
        and not has_own_forward(row[1])
    ]


def _identity(x: torch.Tensor) -> torch.Tensor:
    return x


def _fused(norm: nn.GroupNorm) -> Callable[[torch.Tensor], torch.Tensor]:
    from engine.tuning.kernels.group_norm import group_norm_silu  # Triton is there on GPU machines alone

    def forward(x: torch.Tensor) -> torch.Tensor:
        if x.ndim != 4 or not x.is_contiguous(memory_format=torch.channels_last) or x.shape[1] == 1:
            return functional.silu(nn.GroupNorm.forward(norm, x))
        return group_norm_silu(x, norm.num_groups, norm.weight, norm.bias, norm.eps)

    return forward
