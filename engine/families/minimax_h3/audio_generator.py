"""The decoder of MiniMax H3's audio autoencoder: BigVGAN (Lee et al. 2022, arXiv 2206.04658), of any width.

`B` batch, `C` channels, `N` latent frames, `S` samples. Module names are those of the published file, whose weights are
not split into directions and lengths.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from darkroom.engine.layers.alias_free import AliasFree, SnakeBeta

UPSAMPLES, UPSAMPLE_KERNELS = (5, 5, 2, 2, 2, 2, 2), (9, 9, 4, 4, 4, 4, 4)
BRANCH_KERNELS = (3, 7, 11)
DILATIONS = (1, 3, 5)
END_KERNEL = 7


def activation_names() -> list[str]:
    """Return the names of the generator's alias-free activations."""
    branches = range(len(UPSAMPLES) * len(BRANCH_KERNELS))
    inner = (f"resblocks.{branch}.activations.{index}" for branch in branches for index in range(2 * len(DILATIONS)))
    return [*inner, "activation_post"]


class GeneratorBranch(nn.Module):
    """Residual convolutions of one kernel size, dilated and plain ones in turn, each behind an activation."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.convs1, self.convs2 = (
            nn.ModuleList(
                nn.Conv1d(channels, channels, kernel, dilation=step, padding=(kernel - 1) * step // 2)
                for step in dilations
            )
            for dilations in (DILATIONS, (1,) * len(DILATIONS))
        )
        self.activations = nn.ModuleList(AliasFree(SnakeBeta(channels)) for _ in range(2 * len(DILATIONS)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        activations = [*self.activations]
        for first, second, before, between in zip(
            self.convs1, self.convs2, activations[::2], activations[1::2], strict=True
        ):
            x = x + second(between(first(before(x))))
        return x


class AudioGenerator(nn.Module):
    """`forward([B, C, N])` -> waveforms `[B, 1, 800 N]` in -1..1. `first_channels` are halved by each upsampling."""

    def __init__(self, in_channels: int, first_channels: int) -> None:
        super().__init__()
        widths = [first_channels // 2**index for index in range(len(UPSAMPLES) + 1)]
        self.conv_pre = nn.Conv1d(in_channels, first_channels, END_KERNEL, padding=END_KERNEL // 2)
        factors = zip(pairwise(widths), UPSAMPLES, UPSAMPLE_KERNELS, strict=True)
        self.ups = nn.ModuleList(
            nn.ModuleList([nn.ConvTranspose1d(*pair, kernel, stride=factor, padding=(kernel - factor) // 2)])
            for pair, factor, kernel in factors
        )
        self.resblocks = nn.ModuleList(
            GeneratorBranch(width, kernel) for width in widths[1:] for kernel in BRANCH_KERNELS
        )
        self.activation_post = AliasFree(SnakeBeta(widths[-1]))
        self.conv_post = nn.Conv1d(widths[-1], 1, END_KERNEL, padding=END_KERNEL // 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_pre(x)
        num_branches = len(BRANCH_KERNELS)
        for index, up in enumerate(self.ups):
            assert isinstance(up, nn.ModuleList)
            x = up[0](x)
            branches = [branch(x) for branch in self.resblocks[index * num_branches : (index + 1) * num_branches]]
            x = sum(branches[1:], start=branches[0]) / num_branches
        out: torch.Tensor = self.conv_post(self.activation_post(x))
        return out.clamp(-1.0, 1.0)
