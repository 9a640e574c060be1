"""The autoencoder of songs of ACE-Step: mel spectrograms to latents and back, and a vocoder, of any width.

A deep compression autoencoder (Chen et al. 2024, arXiv 2410.10733) of the spectrograms of both channels as an image.
Waveforms `[B, 2, S]` in -1..1 at 44.1 kHz, spectrograms `[B, 2, 128, N]` of a frame for 512 samples, latents
`[B, C, 16, N / 8]`, unscaled. Module names are those of the original checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.ace_step.vocoder import AceStepVocoder, AceStepVocoderConfig, ace_step_vocoder_config
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.mel_spectrogram import magnitudes, mel_bands
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.shapes import Shapes

MULTIPLES = (1, 2, 4, 8)  # of the channels at each level
ENCODER_BLOCKS, DECODER_BLOCKS = (2, 2, 3, 3), (3, 3, 3, 3)
HEAD_WIDTH = 32
ATTENTION_EPS = 1e-15
NORM_EPS = 1e-5
MIXING_KERNEL = 5
INNER_RATIO = 4
RATE_HZ = 44100
WINDOW, HOP, LOWEST_HZ, HIGHEST_HZ = 2048, 512, 40.0, 16000.0  # of the spectrogram
LEAST_MAGNITUDE = 1e-5
QUIETEST, LOUDEST = -11.0, 3.0  # logarithms of magnitudes that become -1 and 1
SCALE, SHIFT = 0.1786, -1.9091  # of latents
FRAMES_PER_CELL = 8
SAMPLES_PER_CELL = HOP * FRAMES_PER_CELL
# Bytes of working memory and byte of the dtype, of the network of 128 channels: of a sample and of a cell (ComfyUI's).
ENCODE_BYTES, DECODE_BYTES, MEASURED_CHANNELS = 330, 87000, 128

MARK = "vocoder.backbone.channel_layers.0.0.bias"


@dataclass(frozen=True, slots=True)
class AceStepDcaeConfig:
    """Configuration of the network."""

    channels: int = 128
    latent_channels: int = 8
    audio_channels: int = 2
    vocoder: AceStepVocoderConfig = field(default_factory=AceStepVocoderConfig)


def ace_step_dcae_config(shapes: Shapes) -> AceStepDcaeConfig:
    """Return the configuration of the network with these tensors. Raises LookupError for a missing one."""
    channels, audio_channels = shapes["dcae.encoder.conv_in.weight"][:2]
    return AceStepDcaeConfig(
        channels=channels,
        latent_channels=shapes["dcae.decoder.conv_in.weight"][1],
        audio_channels=audio_channels,
        vocoder=ace_step_vocoder_config(shapes, "vocoder."),
    )


class BiasedRmsNorm(RmsNorm):
    """A norm over the channels of `[B, C, h, w]`, with a bias."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, NORM_EPS)
        self.bias = nn.Parameter(torch.empty(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (super().forward(x.movedim(1, -1)) + self.bias.to(x.dtype)).movedim(-1, 1)


class DcaeResBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = Conv2d(channels, channels, 3, padding=1)
        self.conv2 = Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = BiasedRmsNorm(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(self.conv2(functional.silu(self.conv1(x)))) + x
        return out


class NeighbourMixing(nn.Module):
    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.proj_in = Conv2d(
            channels, channels, MIXING_KERNEL, padding=MIXING_KERNEL // 2, groups=channels, bias=False
        )
        self.proj_out = Conv2d(channels, channels, 1, groups=3 * heads, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.proj_out(self.proj_in(x))
        return out


class MultiscaleAttention(nn.Module):
    """Linear attention of cells, and of cells mixed with their neighbours."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (Linear(channels, channels, bias=False) for _ in range(3))
        self.to_qkv_multiscale = nn.ModuleList([NeighbourMixing(3 * channels, channels // HEAD_WIDTH)])
        self.to_out = Linear(2 * channels, channels, bias=False)
        self.norm_out = BiasedRmsNorm(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[-2:]
        cells = x.movedim(1, -1)
        qkv = torch.cat([self.to_q(cells), self.to_k(cells), self.to_v(cells)], dim=3).movedim(-1, 1)
        qkv = torch.cat([qkv, *(mix(qkv) for mix in self.to_qkv_multiscale)], dim=1)
        is_linear = height * width > HEAD_WIDTH
        heads = (qkv.float() if is_linear else qkv).reshape(x.shape[0], -1, 3 * HEAD_WIDTH, height * width)
        q, k, v = heads.chunk(3, dim=2)
        q, k = functional.relu(q), functional.relu(k)
        out = (_linear(q, k, v) if is_linear else _quadratic(q, k, v)).to(x.dtype)
        joined = out.reshape(x.shape[0], -1, height, width).movedim(1, -1)
        normed: torch.Tensor = self.norm_out(self.to_out(joined).movedim(-1, 1))
        return normed + x


def _linear(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    mixed = (functional.pad(v, (0, 0, 0, 1), value=1.0) @ k.transpose(-1, -2)) @ q
    mixed = mixed.float()
    return mixed[:, :, :-1] / (mixed[:, :, -1:] + ATTENTION_EPS)


def _quadratic(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (k.transpose(-1, -2) @ q).float()
    return v @ (scores / (scores.sum(dim=2, keepdim=True) + ATTENTION_EPS)).to(v.dtype)


class GatedCells(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = INNER_RATIO * channels
        self.conv_inverted = Conv2d(channels, 2 * inner, 1)
        self.conv_depth = Conv2d(2 * inner, 2 * inner, 3, padding=1, groups=2 * inner)
        self.conv_point = Conv2d(inner, channels, 1, bias=False)
        self.norm = BiasedRmsNorm(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner, gate = self.conv_depth(functional.silu(self.conv_inverted(x))).chunk(2, dim=1)
        out: torch.Tensor = self.norm(self.conv_point(inner * functional.silu(gate))) + x
        return out


class DcaeAttentionBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.attn, self.conv_out = MultiscaleAttention(channels), GatedCells(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv_out(self.attn(x))
        return out


class HalvingBlock(nn.Module):
    """A convolution that halves both sides, beside the mean of groups of cells."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.group_size = 4 * in_channels // channels
        self.conv = Conv2d(in_channels, channels, 3, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv(x)
        return out + _grouped_mean(functional.pixel_unshuffle(x, 2), self.group_size)


class DoublingBlock(nn.Module):
    """A convolution of an image of both sides doubled, beside its cells spread out."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.repeats = 4 * channels // in_channels
        self.conv = Conv2d(in_channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv(functional.interpolate(x, scale_factor=2, mode="nearest"))
        return out + functional.pixel_shuffle(x.repeat_interleave(self.repeats, dim=1), 2)


def _grouped_mean(x: torch.Tensor, size: int) -> torch.Tensor:
    return x.reshape(x.shape[0], -1, size, *x.shape[2:]).mean(dim=2)


def _blocks(level: int, channels: int, count: int) -> list[nn.Module]:
    kind = DcaeAttentionBlock if level == len(MULTIPLES) - 1 else DcaeResBlock
    return [kind(channels) for _ in range(count)]


class DcaeEncoder(nn.Module):
    def __init__(self, config: AceStepDcaeConfig) -> None:
        super().__init__()
        widths = [config.channels * multiple for multiple in MULTIPLES]
        self.group_size = widths[-1] // config.latent_channels
        self.conv_in = Conv2d(config.audio_channels, widths[0], 3, padding=1)
        self.down_blocks = nn.ModuleList()
        for level, (width, count) in enumerate(zip(widths, ENCODER_BLOCKS, strict=True)):
            halving = [HalvingBlock(width, after) for after in widths[level + 1 : level + 2]]
            self.down_blocks.append(nn.Sequential(*_blocks(level, width, count), *halving))
        self.conv_out = Conv2d(widths[-1], config.latent_channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_in(x)
        for level in self.down_blocks:
            x = level(x)
        out: torch.Tensor = self.conv_out(x)
        return out + _grouped_mean(x, self.group_size)


class DcaeDecoder(nn.Module):
    def __init__(self, config: AceStepDcaeConfig) -> None:
        super().__init__()
        widths = [config.channels * multiple for multiple in MULTIPLES]
        self.repeats = widths[-1] // config.latent_channels
        self.conv_in = Conv2d(config.latent_channels, widths[-1], 3, padding=1)
        self.up_blocks = nn.ModuleList()
        for level, (width, count) in enumerate(zip(widths, DECODER_BLOCKS, strict=True)):
            doubling = [DoublingBlock(before, width) for before in widths[level + 1 : level + 2]]
            self.up_blocks.append(nn.Sequential(*doubling, *_blocks(level, width, count)))
        self.norm_out = BiasedRmsNorm(widths[0])
        self.conv_out = Conv2d(widths[0], config.audio_channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_in(x) + x.repeat_interleave(self.repeats, dim=1)
        for level in reversed(self.up_blocks):
            x = level(x)
        out: torch.Tensor = self.conv_out(functional.relu(self.norm_out(x)))
        return out


class Dcae(nn.Module):
    def __init__(self, config: AceStepDcaeConfig) -> None:
        super().__init__()
        self.encoder, self.decoder = DcaeEncoder(config), DcaeDecoder(config)


class AceStepDcae(nn.Module):
    """`encode` and `decode` between waveforms and latents."""

    is_of_audio = True
    latent_dim = 2
    sample_rate_hz = RATE_HZ

    def __init__(self, config: AceStepDcaeConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels = config.latent_channels
        self.audio_channels = config.audio_channels
        self.latent_height = config.vocoder.num_bands // FRAMES_PER_CELL
        self.downscale_ratio = SAMPLES_PER_CELL
        self.dcae, self.vocoder = Dcae(config), AceStepVocoder(config.vocoder)

    def encode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for encoding one waveform of the shape [B, 2, S], for each byte of the dtype."""
        return ENCODE_BYTES * shape[2] * self.config.channels // MEASURED_CHANNELS

    def decode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for decoding one latent of the shape [B, C, h, L], for each byte of the dtype."""
        return DECODE_BYTES * shape[2] * shape[3] * self.config.channels // MEASURED_CHANNELS

    def encode(self, waveform: torch.Tensor) -> torch.Tensor:
        """Encode a waveform [B, 2, S] to a latent [B, C, 16, S / 4096]."""
        missing = -waveform.shape[-1] % SAMPLES_PER_CELL
        spectra = self._spectra(functional.pad(waveform, (0, missing)))
        latents = [self.dcae.encoder(item[None]) for item in spectra]
        return (torch.cat(latents) - SHIFT) * SCALE

    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        """Decode a latent [B, C, 16, L] to a waveform [B, 2, L * 4096]."""
        latent = latent / SCALE + SHIFT
        waveforms = []
        for item in latent:
            mels = self.dcae.decoder(item[None])[0] * 0.5 + 0.5  # [2, 128, N], channels as a batch
            waveforms.append(self.vocoder(mels * (LOUDEST - QUIETEST) + QUIETEST)[:, 0])
        return torch.stack(waveforms)

    def _spectra(self, waveform: torch.Tensor) -> torch.Tensor:
        """Return the log-mel spectrograms [B, 2, 128, N] of waveforms [B, 2, S], in about -1..1."""
        bands = mel_bands(WINDOW // 2 + 1, self.config.vocoder.num_bands, LOWEST_HZ, HIGHEST_HZ, RATE_HZ).to(
            waveform
        )  # [bins, M]
        spectrum = magnitudes(waveform.flatten(0, 1), WINDOW, HOP).to(waveform.dtype)
        mels = (spectrum.transpose(-1, -2) @ bands).transpose(-1, -2).clamp(min=LEAST_MAGNITUDE).log()
        scaled = (mels - QUIETEST) / (LOUDEST - QUIETEST)
        return ((scaled - 0.5) / 0.5).view(*waveform.shape[:2], *scaled.shape[1:])
