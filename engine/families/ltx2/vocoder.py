"""The vocoder of LTX-2: log-mel spectrograms to waveforms, of any sizes.

HiFi-GAN's generator (Kong et al. 2020, arXiv 2010.05646), or that of BigVGAN 2 with filtered activations. Module names
are those of the published checkpoints. `B` batch, `M` mel bands, `N` frames, `C` channels, `S` samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.ltx2.filtered_activations import REACH as FILTER_REACH
from darkroom.engine.families.ltx2.filtered_activations import FilteredSnake

END_KERNEL = 7
SLOPE, LAST_SLOPE = 0.1, 0.01  # of negative values
NUM_BANDS = 64  # of each channel of audio

BlockKind = Literal["1", "2", "AMP1"]  # HiFi-GAN's two, BigVGAN's
NUM_DILATIONS: dict[BlockKind, int] = {"1": 3, "2": 2, "AMP1": 3}


@dataclass(frozen=True, slots=True)
class VocoderConfig:
    """Configuration of a vocoder. Defaults are those of published files."""

    first_channels: int = 1024
    """Channels that enter the first stage; each stage halves them."""

    rates: tuple[int, ...] = (5, 4, 2, 2, 2)
    """Samples that one becomes, by stage."""

    kernels: tuple[int, ...] = (16, 16, 8, 4, 4)
    """Widths of the transposed convolutions, by stage."""

    block_kernels: tuple[int, ...] = (3, 7, 11)
    """Widths of the convolutions of the parallel blocks of each stage."""

    dilations: tuple[tuple[int, ...], ...] = ((1, 3, 5), (1, 3, 5), (1, 3, 5))
    """Dilations of their layers, by block."""

    kind: BlockKind = "1"
    has_magnitude: bool = False
    """True where filtered activations have a magnitude for each channel beside the frequency."""

    is_stereo: bool = True
    has_last_bias: bool = True
    ending: Literal["tanh", "clamp", "none"] = "tanh"
    """Function that keeps samples in -1..1."""

    sample_rate_hz: int | None = None
    """Rate of the waveform; None: as follows from the spectrogram's."""

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.rates)

    @property
    def is_even(self) -> bool:
        """True if every frame becomes as many samples."""
        return all((kernel - rate) % 2 == 0 for rate, kernel in zip(self.rates, self.kernels, strict=True))

    @property
    def reach_frames(self) -> int:
        """Frames on either side that a sample depends on, at most."""
        reach, rate = END_KERNEL / 2, 1.0
        filters = FILTER_REACH if self.kind == "AMP1" else 0
        widest = max(
            sum((kernel - 1) * step / 2 + (kernel - 1) / 2 + 2 * filters for step in steps)
            for kernel, steps in zip(self.block_kernels, self.dilations, strict=True)
        )
        for factor, kernel in zip(self.rates, self.kernels, strict=True):
            reach += (kernel / factor + 1) / rate
            rate *= factor
            reach += widest / rate
        return math.ceil(reach + (END_KERNEL / 2 + filters) / rate)


def _conv(channels: int, kernel: int, dilation: int) -> nn.Conv1d:
    return nn.Conv1d(channels, channels, kernel, dilation=dilation, padding=(kernel - 1) * dilation // 2)


class PairedBlock(nn.Module):
    """Pairs of convolutions, dilated and plain, each beside its input. With `filtered` by BigVGAN's activations."""

    def __init__(self, channels: int, kernel: int, config: VocoderConfig, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(_conv(channels, kernel, step) for step in dilations)
        self.convs2 = nn.ModuleList(_conv(channels, kernel, 1) for _ in dilations)
        self.acts1, self.acts2 = (
            nn.ModuleList(_activation(channels, config) for _ in dilations) for _ in range(2)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for first, second, act1, act2 in zip(self.convs1, self.convs2, self.acts1, self.acts2, strict=True):
            x = x + second(act2(first(act1(x))))
        return x


class SingleBlock(nn.Module):
    """Dilated convolutions, each beside its input."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(_conv(channels, kernel, step) for step in dilations)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = conv(functional.leaky_relu(x, SLOPE)) + x
        return x


def _activation(channels: int, config: VocoderConfig) -> nn.Module:
    if config.kind == "AMP1":
        return FilteredSnake(channels, has_magnitude=config.has_magnitude)
    return nn.LeakyReLU(SLOPE)


def _block(channels: int, kernel: int, dilations: tuple[int, ...], config: VocoderConfig) -> nn.Module:
    if config.kind == "2":
        return SingleBlock(channels, kernel, dilations)
    return PairedBlock(channels, kernel, config, dilations)


class Ltx2Vocoder(nn.Module):
    """`forward(mel [B, 2, M, N] or [B, M, N])` -> waveform [B, 2 or 1, N * samples_per_frame]."""

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.config = config
        channels = [config.first_channels // 2**level for level in range(len(config.rates) + 1)]
        in_channels, out_channels = (2 * NUM_BANDS, 2) if config.is_stereo else (NUM_BANDS, 1)
        self.conv_pre = nn.Conv1d(in_channels, channels[0], END_KERNEL, padding=END_KERNEL // 2)
        self.ups = nn.ModuleList(
            nn.ConvTranspose1d(entering, leaving, kernel, rate, padding=(kernel - rate) // 2)
            for entering, leaving, kernel, rate in zip(
                channels, channels[1:], config.kernels, config.rates, strict=False
            )
        )
        self.resblocks = nn.ModuleList(
            _block(leaving, kernel, dilations, config)
            for leaving in channels[1:]
            for kernel, dilations in zip(config.block_kernels, config.dilations, strict=True)
        )
        self.act_post = _activation(channels[-1], config) if config.kind == "AMP1" else nn.LeakyReLU(LAST_SLOPE)
        self.conv_post = nn.Conv1d(
            channels[-1], out_channels, END_KERNEL, padding=END_KERNEL // 2, bias=config.has_last_bias
        )

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        x = self.conv_pre(mel.flatten(1, 2) if mel.ndim == 4 else mel)
        num_blocks = len(self.config.block_kernels)
        for stage, up in enumerate(self.ups):
            x = up(x if self.config.kind == "AMP1" else functional.leaky_relu(x, SLOPE))
            blocks = self.resblocks[stage * num_blocks : (stage + 1) * num_blocks]
            total = blocks[0](x)
            for block in blocks[1:]:
                total = total + block(x)
            x = total / num_blocks
        out: torch.Tensor = self.conv_post(self.act_post(x))
        if self.config.ending == "tanh":
            return torch.tanh(out)
        return out.clamp(-1, 1) if self.config.ending == "clamp" else out
