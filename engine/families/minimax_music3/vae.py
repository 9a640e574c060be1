"""The audio decoder of MiniMax Music 3, of any width: the decoder of the Descript Audio Codec.

Latents `[B, 128, L]` hold 64 channels for each stereo channel, which are decoded one by one to waveforms
`[B, 2, 512 L]` in -1..1 at 44.1 kHz (Kumar et al. 2023, arXiv 2306.06546). There is no encoder. Long audio is decoded
by stretches together with the cells that a sample depends on, so that memory is bounded and the waveform is that of the
whole.
`B` batch, `C` channels, `L` latent cells, `S` samples. Module names are those of the published file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.layers.alias_free import Snake
from darkroom.engine.layers.shapes import Shapes
from darkroom.engine.layers.weight_norm import NormedConv1d, NormedConvTranspose1d

SAMPLE_RATE_HZ = 44100
STRIDES = (8, 8, 4, 2)
SAMPLES_PER_CELL = math.prod(STRIDES)
AUDIO_CHANNELS, LATENT_CHANNELS = 2, 128
CHANNELS_PER_SIDE = LATENT_CHANNELS // AUDIO_CHANNELS
DILATIONS = (1, 3, 9)
KERNEL = 7
STRETCH_CELLS = 512  # 5.9 s
# Numbers of working memory for each sample of both stereo channels, of the published network.
VALUES_PER_SAMPLE, MEASURED_CHANNELS = 1400, 1536

NO_ENCODER = (
    "vae: it has no encoder; got MiniMax Music 3's decoder of audio, expected a VAE that encodes audio, such as Stable "
    "Audio's, for a model that samples its latents"
)
KEY, FIRST = "dec_in_proj.weight", "decoder.model.0.weight_g"
MARK = "decoder.model.1.block.0.alpha"


def margin_cells() -> int:
    """Return the cells on either side of a stretch that its samples depend on."""
    edge = KERNEL // 2
    samples = edge  # of the level that has been reached, from the waveform inwards
    for stride in reversed(STRIDES):
        samples += edge * sum(DILATIONS)
        samples = math.ceil((samples + math.ceil(stride / 2)) / stride)
    return samples + edge


MARGIN_CELLS = margin_cells()


@dataclass(frozen=True, slots=True)
class MiniMaxMusic3VaeConfig:
    """Configuration of the network. `channels` are those of the first level, halved at each further one."""

    channels: int = 1536
    hidden_size: int = 1024


def minimax_music3_vae_config(shapes: Shapes) -> MiniMaxMusic3VaeConfig:
    """Return the configuration of the network with these tensors. Raises LookupError for a missing one."""
    return MiniMaxMusic3VaeConfig(shapes[FIRST][0], shapes[KEY][0])


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        padding = dilation * (KERNEL - 1) // 2
        self.block = nn.Sequential(
            Snake(channels),
            NormedConv1d(channels, channels, KERNEL, dilation=dilation, padding=padding),
            Snake(channels),
            NormedConv1d(channels, channels, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.block(x)
        return x + out


class DecoderBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            Snake(in_channels),
            NormedConvTranspose1d(in_channels, channels, 2 * stride, stride=stride, padding=math.ceil(stride / 2)),
            *(ResidualUnit(channels, dilation) for dilation in DILATIONS),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.block(x)
        return out


class AudioDecoder(nn.Module):
    """`forward([B, C, L])` -> waveforms `[B, 1, 512 L]` in -1..1."""

    def __init__(self, config: MiniMaxMusic3VaeConfig) -> None:
        super().__init__()
        widths = [config.channels // 2**level for level in range(len(STRIDES) + 1)]
        self.model = nn.Sequential(
            NormedConv1d(config.hidden_size, widths[0], KERNEL, padding=KERNEL // 2),
            *(DecoderBlock(*sizes) for sizes in zip(widths, widths[1:], STRIDES, strict=False)),
            Snake(widths[-1]),
            NormedConv1d(widths[-1], 1, KERNEL, padding=KERNEL // 2),
            nn.Tanh(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(x)
        return out


class MiniMaxMusic3Vae(nn.Module):
    """`decode` of latents to waveforms."""

    is_of_audio = True
    latent_dim = 1
    latent_channels = LATENT_CHANNELS
    audio_channels = AUDIO_CHANNELS
    downscale_ratio = SAMPLES_PER_CELL
    sample_rate_hz = SAMPLE_RATE_HZ

    def __init__(self, config: MiniMaxMusic3VaeConfig) -> None:
        super().__init__()
        self.config = config
        self.dec_in_proj = nn.Conv1d(CHANNELS_PER_SIDE, config.hidden_size, 1)
        self.decoder = AudioDecoder(config)

    def encode_bytes(self, shape: tuple[int, ...]) -> int:
        """Raise ValueError, as `encode`."""
        raise ValueError(NO_ENCODER)

    def encode(self, waveform: torch.Tensor) -> torch.Tensor:
        """Raise ValueError: the network has no encoder."""
        raise ValueError(NO_ENCODER)

    def decode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for decoding one latent of the shape [B, 128, L], for each byte of the dtype."""
        *_, length = shape
        computed = min(length, STRETCH_CELLS + 2 * MARGIN_CELLS) * VALUES_PER_SAMPLE
        values = computed * self.config.channels // MEASURED_CHANNELS + length * AUDIO_CHANNELS
        return values * SAMPLES_PER_CELL

    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        """Decode latents [B, 128, L] to waveforms [B, 2, 512 L]."""
        batch, _, length = latent.shape
        sides = latent.reshape(batch * AUDIO_CHANNELS, CHANNELS_PER_SIDE, length)
        stretches = [self._stretch(sides, start) for start in range(0, length, STRETCH_CELLS)]
        waveforms = stretches[0] if len(stretches) == 1 else torch.cat(stretches, dim=-1)
        return waveforms.view(batch, AUDIO_CHANNELS, -1)

    def _stretch(self, sides: torch.Tensor, start: int) -> torch.Tensor:
        """Return the waveforms [2 B, 1, S] of the cells from `start` on, of a stretch or less."""
        first = max(0, start - MARGIN_CELLS)
        cells = sides[..., first : start + STRETCH_CELLS + MARGIN_CELLS]
        waveforms: torch.Tensor = self.decoder(self.dec_in_proj(cells))
        skipped = (start - first) * SAMPLES_PER_CELL
        return waveforms[..., skipped : skipped + STRETCH_CELLS * SAMPLES_PER_CELL]
