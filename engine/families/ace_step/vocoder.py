"""The vocoder of ACE-Step: log-mel spectrograms to waveforms, of any width.

ConvNeXt (Liu et al. 2022, arXiv 2201.03545) along time, then HiFi-GAN's generator (Kong et al. 2020, arXiv 2010.05646).
`B` batch, `M` mel bands, `N` frames, `C` channels. Module names are those of the original checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.shapes import Shapes
from darkroom.engine.layers.weight_norm import NormedConv1d, NormedConvTranspose1d

DEPTHS = (3, 3, 9, 3)
UPSAMPLES = (4, 4, 2, 2, 2, 2, 2)
BRANCH_KERNELS = (3, 7, 11, 13)
DILATIONS = (1, 3, 5)
END_KERNEL = 13
NORM_EPS = 1e-6

MARK = "backbone.channel_layers.0.0.bias"


@dataclass(frozen=True, slots=True)
class AceStepVocoderConfig:
    """Configuration of the vocoder: channels of each stage of the backbone, and the first ones of the generator."""

    stage_channels: tuple[int, ...] = (128, 256, 384, 512)
    first_channels: int = 1024
    num_bands: int = 128


def ace_step_vocoder_config(shapes: Shapes, prefix: str) -> AceStepVocoderConfig:
    """Return the configuration of the vocoder with these tensors behind a prefix. Raises LookupError."""
    first = shapes[f"{prefix}backbone.channel_layers.0.0.weight"]
    others = (shapes[f"{prefix}backbone.channel_layers.{index}.1.weight"][0] for index in range(1, len(DEPTHS)))
    return AceStepVocoderConfig(
        stage_channels=(first[0], *others),
        first_channels=shapes[f"{prefix}head.conv_pre.weight_v"][0],
        num_bands=first[1],
    )


class ChannelNorm(nn.Module):
    """A layer norm over the channels of `[B, C, N]`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(channels)), nn.Parameter(torch.empty(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + NORM_EPS)
        out: torch.Tensor = self.weight[:, None].to(x.dtype) * x + self.bias[:, None].to(x.dtype)
        return out


class ConvNextBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv1d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=NORM_EPS)
        self.pwconv1, self.pwconv2 = Linear(channels, 4 * channels), Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.empty(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norm(self.dwconv(x).transpose(1, 2))
        inner = self.pwconv2(functional.gelu(self.pwconv1(inner)))
        out: torch.Tensor = x + (self.gamma.to(x.dtype) * inner).transpose(1, 2)
        return out


class ConvNextBackbone(nn.Module):
    def __init__(self, config: AceStepVocoderConfig) -> None:
        super().__init__()
        first, *_ = widths = config.stage_channels
        stem = nn.Conv1d(config.num_bands, first, 7, padding=3, padding_mode="replicate")
        between = (
            nn.Sequential(ChannelNorm(old), nn.Conv1d(old, new, 1))
            for old, new in zip(widths, widths[1:], strict=False)
        )
        self.channel_layers = nn.ModuleList([nn.Sequential(stem, ChannelNorm(first)), *between])
        self.stages = nn.ModuleList(
            nn.Sequential(*(ConvNextBlock(width) for _ in range(depth)))
            for width, depth in zip(widths, DEPTHS, strict=True)
        )
        self.norm = ChannelNorm(widths[-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, stage in zip(self.channel_layers, self.stages, strict=True):
            x = stage(layer(x))
        out: torch.Tensor = self.norm(x)
        return out


class GeneratorBranch(nn.Module):
    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.convs1, self.convs2 = (
            nn.ModuleList(
                NormedConv1d(channels, channels, kernel, dilation=step, padding=(kernel - 1) * step // 2)
                for step in dilations
            )
            for dilations in (DILATIONS, (1,) * len(DILATIONS))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for first, second in zip(self.convs1, self.convs2, strict=True):
            x = second(functional.silu(first(functional.silu(x)))) + x
        return x


class WaveGenerator(nn.Module):
    def __init__(self, config: AceStepVocoderConfig) -> None:
        super().__init__()
        widths = [config.first_channels // 2**index for index in range(len(UPSAMPLES) + 1)]
        self.conv_pre = NormedConv1d(config.stage_channels[-1], widths[0], END_KERNEL, padding=END_KERNEL // 2)
        self.ups = nn.ModuleList(
            NormedConvTranspose1d(old, new, 2 * factor, stride=factor, padding=factor // 2)
            for old, new, factor in zip(widths, widths[1:], UPSAMPLES, strict=False)
        )
        self.resblocks = nn.ModuleList(
            GeneratorBranch(width, kernel) for width in widths[1:] for kernel in BRANCH_KERNELS
        )
        self.conv_post = NormedConv1d(widths[-1], 1, END_KERNEL, padding=END_KERNEL // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_pre(x)
        for index, up in enumerate(self.ups):
            x = up(functional.silu(x))
            start = index * len(BRANCH_KERNELS)
            branches = [branch(x) for branch in self.resblocks[start : start + len(BRANCH_KERNELS)]]
            x = sum(branches[1:], start=branches[0]) / len(branches)
        out: torch.Tensor = torch.tanh(self.conv_post(functional.silu(x)))
        return out


class AceStepVocoder(nn.Module):
    """`forward(mel [B, M, N])` -> waveform `[B, 1, 512 N]`."""

    def __init__(self, config: AceStepVocoderConfig) -> None:
        super().__init__()
        self.backbone, self.head = ConvNextBackbone(config), WaveGenerator(config)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.backbone(mel))
        return out
