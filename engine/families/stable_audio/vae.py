"""The audio autoencoder of Stable Audio ("Oobleck", Evans et al. 2024, arXiv 2404.10301), of any width.

Waveforms `[B, 2, S]` in -1..1, at 44.1 kHz in Stable Audio, latents `[B, C, L]` of a cell for the product of the
strides, 2048 samples there, unscaled. Activations are periodic, with a frequency and a size for each channel (Lee
et al. 2022, arXiv 2206.04658). Module names are those of the original checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.shapes import Shapes
from darkroom.engine.layers.weight_norm import NormedConv1d, NormedConvTranspose1d

MULTIPLES = (1, 2, 4, 8, 16)  # of the channels at each level, the one next to the waveform first
STRIDES = (2, 4, 4, 8, 8)
SAMPLES_PER_CELL = math.prod(STRIDES)
DILATIONS = (1, 3, 9)
KERNEL = 7
NO_DIVISION_BY_ZERO = 1e-9
LEAST_DEVIATION = 1e-4
NOISE_SEED = 0
SAMPLE_RATE_HZ = 44100
# Bytes of working memory per sample and byte of the dtype, of the network of 128 channels (ComfyUI's).
BYTES_PER_SAMPLE, MEASURED_CHANNELS = 1000, 128

MARK = "decoder.layers.1.layers.0.beta"


@dataclass(frozen=True, slots=True)
class OobleckVaeConfig:
    """Configuration of the network."""

    channels: int = 128
    latent_channels: int = 64
    audio_channels: int = 2
    strides: tuple[int, ...] = STRIDES
    sample_rate_hz: int = SAMPLE_RATE_HZ

    @property
    def samples_per_cell(self) -> int:
        """Samples of the waveform that are one latent cell."""
        return math.prod(self.strides)


def oobleck_vae_config(shapes: Shapes) -> OobleckVaeConfig:
    """Return the configuration of the network with these tensors. Raises LookupError for a missing one."""
    channels, audio_channels, _ = shapes["encoder.layers.0.weight_v"]
    kernels = (shapes[f"encoder.layers.{level}.layers.4.weight_v"][2] for level in range(1, len(STRIDES) + 1))
    strides = tuple(kernel // 2 for kernel in kernels)
    return OobleckVaeConfig(channels, shapes["decoder.layers.0.weight_v"][1], audio_channels, strides)


class SnakeBeta(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha, self.beta = (nn.Parameter(torch.empty(channels)) for _ in range(2))  # logarithms

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        alpha, beta = (item[None, :, None].to(x.dtype).exp() for item in (self.alpha, self.beta))
        return x + (1.0 / (beta + NO_DIVISION_BY_ZERO)) * torch.sin(x * alpha).pow(2)


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        padding = dilation * (KERNEL - 1) // 2
        self.layers = nn.Sequential(
            SnakeBeta(channels),
            NormedConv1d(channels, channels, KERNEL, dilation=dilation, padding=padding),
            SnakeBeta(channels),
            NormedConv1d(channels, channels, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return x + out


class OobleckEncoderBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(ResidualUnit(in_channels, dilation) for dilation in DILATIONS),
            SnakeBeta(in_channels),
            NormedConv1d(in_channels, channels, 2 * stride, stride=stride, padding=math.ceil(stride / 2)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


class OobleckDecoderBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            SnakeBeta(in_channels),
            NormedConvTranspose1d(in_channels, channels, 2 * stride, stride=stride, padding=math.ceil(stride / 2)),
            *(ResidualUnit(channels, dilation) for dilation in DILATIONS),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


class OobleckHalf(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def _encoder(config: OobleckVaeConfig) -> OobleckHalf:
    widths = [config.channels * multiple for multiple in (1, *MULTIPLES)]
    return OobleckHalf(
        NormedConv1d(config.audio_channels, widths[0], KERNEL, padding=3),
        *(OobleckEncoderBlock(*sizes) for sizes in zip(widths, widths[1:], config.strides, strict=False)),
        SnakeBeta(widths[-1]),
        NormedConv1d(widths[-1], 2 * config.latent_channels, 3, padding=1),
    )


def _decoder(config: OobleckVaeConfig) -> OobleckHalf:
    widths = [config.channels * multiple for multiple in (1, *MULTIPLES)][::-1]
    return OobleckHalf(
        NormedConv1d(config.latent_channels, widths[0], KERNEL, padding=3),
        *(OobleckDecoderBlock(*sizes) for sizes in zip(widths, widths[1:], config.strides[::-1], strict=False)),
        SnakeBeta(widths[-1]),
        NormedConv1d(widths[-1], config.audio_channels, KERNEL, padding=3, bias=False),
    )


class OobleckVae(nn.Module):
    """`encode` and `decode` between waveforms and latents."""

    is_of_audio = True
    latent_dim = 1

    def __init__(self, config: OobleckVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels = config.latent_channels
        self.audio_channels = config.audio_channels
        self.downscale_ratio = config.samples_per_cell
        self.sample_rate_hz = config.sample_rate_hz
        self.encoder, self.decoder = _encoder(config), _decoder(config)

    def encode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for encoding one waveform of the shape [B, 2, S], for each byte of the dtype."""
        return BYTES_PER_SAMPLE * shape[2] * self.config.channels // MEASURED_CHANNELS

    def decode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for decoding one latent of the shape [B, C, L], for each byte of the dtype."""
        return BYTES_PER_SAMPLE * shape[2] * self.downscale_ratio * self.config.channels // MEASURED_CHANNELS

    def encode(self, waveform: torch.Tensor) -> torch.Tensor:
        """Encode a waveform [B, 2, S] to a latent [B, C, L]: a draw of the posterior, the same every time."""
        mean, scale = self.encoder(waveform).chunk(2, dim=1)
        deviation = functional.softplus(scale) + LEAST_DEVIATION
        generator = torch.Generator("cpu").manual_seed(NOISE_SEED)
        noise = torch.randn(mean.shape, generator=generator, dtype=torch.float32).to(mean)
        drawn: torch.Tensor = noise * deviation + mean
        return drawn

    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        """Decode a latent [B, C, L] to a waveform [B, 2, S]."""
        out: torch.Tensor = self.decoder(latent)
        return out
