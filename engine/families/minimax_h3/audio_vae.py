"""The audio autoencoder of MiniMax H3, of any width: both stereo channels pass through it one by one.

Waveforms `[B, 2, S]` in -1..1 at 32 kHz, latents `[B, 32, 2, N]` of 40 frames a second, standardised by the file's
means and deviations. The encoder is that of the Descript Audio Codec (Kumar et al. 2023, arXiv 2306.06546) with causal
attention behind it. `B` batch, `C` channels, `D` hidden size. Module names are those of the published file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.minimax_h3.audio_generator import AudioGenerator, activation_names
from darkroom.engine.layers.alias_free import FILTER_NAMES, Snake
from darkroom.engine.layers.attention import attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.shapes import Shapes

SAMPLE_RATE_HZ = 32000
STRIDES = (2, 4, 4, 5, 5)
SAMPLES_PER_FRAME = math.prod(STRIDES)
LATENT_CHANNELS, AUDIO_CHANNELS = 32, 2
DILATIONS = (1, 3, 9)
KERNEL = 7
HEADS, FEED_FORWARD_RATIO = 8, 2
# Numbers of working memory of the published network, by sample and in all (ComfyUI's), and its widths.
ENCODE_VALUES_PER_SAMPLE, ENCODE_VALUES, MEASURED_CHANNELS = 900, 105_000_000, 64
DECODE_VALUES_PER_SAMPLE, DECODE_VALUES, LEAST_DECODE_VALUES, MEASURED_FIRST = 220, 20_000_000, 42_000_000, 1024

KEY = "pre_block.attn.zero_k_bias"
FILTERS = tuple(f"decoder.{name}.{filter_}" for name in activation_names() for filter_ in FILTER_NAMES)


@dataclass(frozen=True, slots=True)
class MiniMaxH3AudioVaeConfig:
    """Configuration of the network. `channels` are those of the encoder next to the waveform, doubled at each level.

    `hidden_size` is that between encoder, attention and decoder, `first_channels` those of the decoder, halved at each
    of its levels.
    """

    channels: int = 64
    hidden_size: int = 2048
    first_channels: int = 1024


def minimax_h3_audio_vae_config(shapes: Shapes) -> MiniMaxH3AudioVaeConfig:
    """Return the configuration of the network with these tensors. Raises LookupError for a missing one."""
    first_channels, hidden_size, _ = shapes["decoder.conv_pre.weight"]
    return MiniMaxH3AudioVaeConfig(shapes["encoder.block.0.weight"][0], hidden_size, first_channels)


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            Snake(channels),
            nn.Conv1d(channels, channels, KERNEL, dilation=dilation, padding=dilation * (KERNEL - 1) // 2),
            Snake(channels),
            nn.Conv1d(channels, channels, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.block(x)
        return x + out


class EncoderBlock(nn.Module):
    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            *(ResidualUnit(channels, dilation) for dilation in DILATIONS),
            Snake(channels),
            nn.Conv1d(channels, 2 * channels, 2 * stride, stride=stride, padding=math.ceil(stride / 2)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.block(x)
        return out


class AudioEncoder(nn.Module):
    """`forward([B, 1, S])` -> `[B, D, S / 800]`."""

    def __init__(self, config: MiniMaxH3AudioVaeConfig) -> None:
        super().__init__()
        widths = [config.channels * 2**level for level in range(len(STRIDES) + 1)]
        self.block = nn.Sequential(
            nn.Conv1d(1, widths[0], KERNEL, padding=KERNEL // 2),
            *(EncoderBlock(width, stride) for width, stride in zip(widths, STRIDES, strict=False)),
            Snake(widths[-1]),
            nn.Conv1d(widths[-1], config.hidden_size, 3, padding=1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.block(x)
        return out


class PooledAttention(nn.Module):
    """Causal attention `[B, N, D]` -> `[B, N, 32]`: the mean of the heads, whose channels are averaged in groups."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.qkv = Linear(hidden_size, 3 * hidden_size, bias=False)
        self.q_bias, self.v_bias, self.zero_k_bias = (nn.Parameter(torch.empty(hidden_size)) for _ in range(3))
        self.proj = Linear(LATENT_CHANNELS, LATENT_CHANNELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        biases = torch.cat([self.q_bias, self.zero_k_bias, self.v_bias]).to(x.dtype)
        q, k, v = (self.qkv(x) + biases).chunk(3, dim=-1)
        heads = attention(q, k, v, HEADS, is_causal=True).view(*x.shape[:2], HEADS, -1)
        out: torch.Tensor = self.proj(functional.adaptive_avg_pool1d(heads.mean(dim=2), LATENT_CHANNELS))
        return out


class GatedFeedForward(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size)
        self.w0, self.w1 = (Linear(hidden_size, FEED_FORWARD_RATIO * hidden_size) for _ in range(2))
        self.w2 = Linear(FEED_FORWARD_RATIO * hidden_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        out: torch.Tensor = self.w2(functional.gelu(self.w0(x), approximate="tanh") * self.w1(x))
        return out


class AttentionProjection(nn.Module):
    """`forward([B, N, D])` -> `[B, N, 32]`."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.norm1, self.norm3 = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.attn, self.proj = PooledAttention(hidden_size), Linear(hidden_size, LATENT_CHANNELS)
        self.norm2, self.mlp = nn.LayerNorm(LATENT_CHANNELS), GatedFeedForward(LATENT_CHANNELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.proj(self.norm3(x)) + self.attn(self.norm1(x))
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class MiniMaxH3AudioVae(nn.Module):
    """`encode` and `decode` between waveforms and latents."""

    is_of_audio = True
    latent_dim = 2
    latent_height = AUDIO_CHANNELS
    latent_channels = LATENT_CHANNELS
    audio_channels = AUDIO_CHANNELS
    downscale_ratio = SAMPLES_PER_FRAME
    sample_rate_hz = SAMPLE_RATE_HZ

    def __init__(self, config: MiniMaxH3AudioVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder, self.pre_block = AudioEncoder(config), AttentionProjection(config.hidden_size)
        self.mean_proj = nn.Conv1d(LATENT_CHANNELS, LATENT_CHANNELS, 1)
        self.logs_proj = nn.Conv1d(LATENT_CHANNELS, LATENT_CHANNELS, 1)  # of deviations, with which it was trained
        self.dec_in_proj = nn.Conv1d(LATENT_CHANNELS, config.hidden_size, 1)
        self.decoder = AudioGenerator(config.hidden_size, config.first_channels)
        self.latents_mean, self.latents_std = (nn.Parameter(torch.empty(LATENT_CHANNELS)) for _ in range(2))

    def encode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for encoding one waveform of the shape [B, 2, S], for each byte of the dtype."""
        values = ENCODE_VALUES_PER_SAMPLE * shape[2] + ENCODE_VALUES
        return values * self.config.channels // MEASURED_CHANNELS

    def decode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for decoding one latent of the shape [B, 32, 2, N], for each byte of the dtype."""
        values = DECODE_VALUES_PER_SAMPLE * shape[3] * SAMPLES_PER_FRAME + DECODE_VALUES
        return max(values, LEAST_DECODE_VALUES) * self.config.first_channels // MEASURED_FIRST

    def encode(self, waveform: torch.Tensor) -> torch.Tensor:
        """Encode waveforms [B, 2, 800 N] to latents [B, 32, 2, N]: the mean of the posterior."""
        hidden = self.encoder(waveform.flatten(0, 1)[:, None])  # [2 B, D, N]
        mean = self.mean_proj(self.pre_block(hidden.transpose(1, 2)).transpose(1, 2))
        centre, deviation = (item[:, None].to(mean.dtype) for item in (self.latents_mean, self.latents_std))
        latents: torch.Tensor = (mean - centre) / deviation
        return latents.view(-1, AUDIO_CHANNELS, *latents.shape[1:]).transpose(1, 2)

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Decode latents [B, 32, 2, N] to waveforms [B, 2, 800 N]."""
        centre, deviation = (item[:, None].to(latents.dtype) for item in (self.latents_mean, self.latents_std))
        z = latents.transpose(1, 2).flatten(0, 1) * deviation + centre  # [2 B, 32, N]
        waveforms: torch.Tensor = self.decoder(self.dec_in_proj(z))
        return waveforms.view(-1, AUDIO_CHANNELS, waveforms.shape[2])
