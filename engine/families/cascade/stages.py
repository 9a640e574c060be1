"""The autoencoders of Stable Cascade: stage A, and the encoder and the previewer of stage C's latents.

Pernias et al. 2023, arXiv 2306.00637. `B` batch, `C` channels, `H W` pixels, `h w` latent cells. Module names are those
of the original checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.cascade.efficientnet import LAST_CHANNELS, efficientnet_features
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.frozen_norm import FrozenBatchNorm

# Bytes of working memory per pixel (encode) and latent cell (decode) and byte of the dtype, those ComfyUI assumes for
# the networks of full width.
ENCODE_BYTES_PER_PIXEL = 1767
DECODE_BYTES_PER_CELL = 2178 * 64
STAGE_A_CHANNELS, PREVIEWER_CHANNELS = 384, 512
IMAGE_CHANNELS = 3
NORM_EPSILON = 1e-6
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of the colours of ImageNet's images


@dataclass(frozen=True, slots=True)
class StageAConfig:
    """Configuration of stage A: widths of its levels, largest image first, and blocks on the lowest one."""

    level_channels: tuple[int, ...] = (192, 384)
    num_blocks: int = 12
    latent_channels: int = 4
    num_codes: int = 8192


@dataclass(frozen=True, slots=True)
class StageCCoderConfig:
    """Configuration of the coders of stage C's latents. A file may have either of them alone.

    `has_colours`: the encoder's mean and deviation of colours are among its weights.
    """

    latent_channels: int = 16
    hidden_channels: int = 512
    has_encoder: bool = True
    has_previewer: bool = True
    has_colours: bool = False


class StageABlock(nn.Module):
    """A residual block of two branches, each with a learned scale, shift and gain (`gammas`)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Sequential(nn.ReplicationPad2d(1), Conv2d(channels, channels, 3, groups=channels))
        self.channelwise = nn.Sequential(Linear(channels, channels * 4), nn.GELU(), Linear(channels * 4, channels))
        self.gammas = nn.Parameter(torch.empty(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gammas = self.gammas.to(x)
        x = x + self.depthwise(_normalised(x) * (1 + gammas[0]) + gammas[1]) * gammas[2]
        h = _normalised(x) * (1 + gammas[3]) + gammas[4]
        out: torch.Tensor = x + self.channelwise(h.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) * gammas[5]
        return out


def _normalised(x: torch.Tensor) -> torch.Tensor:
    """Return layer norm over the channels of [B, C, h, w]."""
    last = x.permute(0, 2, 3, 1)
    return functional.layer_norm(last, last.shape[-1:], eps=NORM_EPSILON).permute(0, 3, 1, 2)


class Quantizer(nn.Module):
    """The codes that latents were trained with. Decoding takes latents as they are."""

    def __init__(self, config: StageAConfig) -> None:
        super().__init__()
        self.codebook = nn.Embedding(config.num_codes, config.latent_channels)


class StageA(nn.Module):
    """A fourfold autoencoder of images [B, 3, H, W] of 0..1, which it returns unclipped."""

    takes_plain_images = True

    def __init__(self, config: StageAConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels = config.latent_channels
        self.downscale_ratio = 2 ** len(config.level_channels)
        levels = config.level_channels
        self.in_block = nn.Sequential(nn.PixelUnshuffle(2), Conv2d(IMAGE_CHANNELS * 4, levels[0], 1))
        down: list[nn.Module] = []
        for index, channels in enumerate(levels):
            if index:
                down.append(Conv2d(levels[index - 1], channels, 4, stride=2, padding=1))
            down.append(StageABlock(channels))
        last = Conv2d(levels[-1], config.latent_channels, 1, bias=False)
        self.down_blocks = nn.Sequential(*down, nn.Sequential(last, FrozenBatchNorm(config.latent_channels)))
        self.vquantizer = Quantizer(config)
        up: list[nn.Module] = [nn.Sequential(Conv2d(config.latent_channels, levels[-1], 1))]
        for index, channels in reversed(list(enumerate(levels))):
            up += [StageABlock(channels) for _ in range(config.num_blocks if index == len(levels) - 1 else 1)]
            if index:
                up.append(nn.ConvTranspose2d(channels, levels[index - 1], 4, stride=2, padding=1))
        self.up_blocks = nn.Sequential(*up)
        self.out_block = nn.Sequential(Conv2d(levels[0], IMAGE_CHANNELS * 4, 1), nn.PixelShuffle(2))

    @property
    def encode_bytes_per_pixel(self) -> int:
        return ENCODE_BYTES_PER_PIXEL * self.config.level_channels[-1] // STAGE_A_CHANNELS

    @property
    def decode_bytes_per_cell(self) -> int:
        return DECODE_BYTES_PER_CELL * self.config.level_channels[-1] // STAGE_A_CHANNELS

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        latents: torch.Tensor = self.down_blocks(self.in_block(images))
        return latents

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        images: torch.Tensor = self.out_block(self.up_blocks(latents))
        return images


class LatentEncoder(nn.Module):
    """Images [B, 3, H, W] of -1..1 -> latents of stage C [B, C, H/32, W/32]."""

    def __init__(self, latent_channels: int, *, has_colours: bool) -> None:
        super().__init__()
        self.backbone = efficientnet_features()
        self.mapper = nn.Sequential(
            Conv2d(LAST_CHANNELS, latent_channels, 1, bias=False), FrozenBatchNorm(latent_channels, is_affine=False)
        )
        self.mean = nn.Parameter(torch.empty(IMAGE_CHANNELS)) if has_colours else None
        self.std = nn.Parameter(torch.empty(IMAGE_CHANNELS)) if has_colours else None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        mean, std = (
            torch.tensor(usual).to(images).view(-1, 1, 1) if own is None else own.to(images).view(-1, 1, 1)
            for own, usual in ((self.mean, MEAN), (self.std, DEVIATION))
        )
        latents: torch.Tensor = self.mapper(self.backbone((images * 0.5 + 0.5 - mean) / std))
        return latents


class Previewer(nn.Module):
    """Latents of stage C [B, C, h, w] -> rough images [B, 3, 8 * h, 8 * w] of -1..1."""

    def __init__(self, latent_channels: int, width: int) -> None:
        super().__init__()
        half, quarter = width // 2, width // 4
        convolutions: list[tuple[nn.Module, int]] = [
            (Conv2d(latent_channels, width, 1), width),
            (Conv2d(width, width, 3, padding=1), width),
            (nn.ConvTranspose2d(width, half, 2, stride=2), half),
            (Conv2d(half, half, 3, padding=1), half),
            (nn.ConvTranspose2d(half, quarter, 2, stride=2), quarter),
            (Conv2d(quarter, quarter, 3, padding=1), quarter),
            (nn.ConvTranspose2d(quarter, quarter, 2, stride=2), quarter),
            (Conv2d(quarter, quarter, 3, padding=1), quarter),
        ]
        layers = [layer for conv, channels in convolutions for layer in (conv, nn.GELU(), FrozenBatchNorm(channels))]
        self.blocks = nn.Sequential(*layers, Conv2d(quarter, IMAGE_CHANNELS, 1))

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        images: torch.Tensor = (self.blocks(latents) - 0.5) * 2.0
        return images


class StageCCoder(nn.Module):
    """The encoder and the previewer of stage C's latents, either of which may be missing."""

    def __init__(self, config: StageCCoderConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels = config.latent_channels
        self.upscale_ratio = 8
        self.downscale_ratio = 32 if config.has_encoder else self.upscale_ratio
        encoder = LatentEncoder(config.latent_channels, has_colours=config.has_colours) if config.has_encoder else None
        self.encoder = encoder
        self.previewer = Previewer(config.latent_channels, config.hidden_channels) if config.has_previewer else None

    @property
    def encode_bytes_per_pixel(self) -> int:
        return ENCODE_BYTES_PER_PIXEL

    @property
    def decode_bytes_per_cell(self) -> int:
        return DECODE_BYTES_PER_CELL * self.config.hidden_channels // PREVIEWER_CHANNELS

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        """Return the latents. Raises ValueError without an encoder."""
        if self.encoder is None:
            raise ValueError("VAE: its file has no encoder; got a previewer alone, expected the encoder of stage C")
        latents: torch.Tensor = self.encoder(images)
        return latents

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return rough images. Raises ValueError without a previewer."""
        if self.previewer is None:
            raise ValueError("VAE: its file has no decoder; got the encoder of stage C alone, expected a previewer")
        images: torch.Tensor = self.previewer(latents)
        return images


def build_coder(config: StageAConfig | StageCCoderConfig) -> StageA | StageCCoder:
    """Build either autoencoder."""
    return StageA(config) if isinstance(config, StageAConfig) else StageCCoder(config)
