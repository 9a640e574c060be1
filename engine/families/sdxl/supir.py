"""SUPIR (Yu et al. 2024, arXiv 2401.13627): a control of Stable Diffusion XL by the image to restore.

A copy of the UNet's first half reads the image's latent beside the noisy one. Its features replace the sums and
joins of the UNet: adapters scale and shift each skip connection and what it is joined with, others attend to the
features before the UNet enlarges. `B` batch, `C` channels, `h w` cells of a level, `T` tokens, `D` their width. Module
names are those of the published files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Conv2d, GroupNorm, Linear
from darkroom.engine.layers.unet import UnetConfig, build_block, label_embedding
from darkroom.engine.layers.unet_layers import BlockSpec, ConvSpec, ResSpec, TransformerSpec, UpSpec, timestep_embedding
from darkroom.engine.layers.vae_kl import Encoder, VaeConfig

ENCODER = "denoise_encoder."  # name of the encoder of degraded images
HEAD_CHANNELS = 64
GROUPS = 32


@dataclass(frozen=True, slots=True)
class ShiftSpec:
    """An adapter that scales and shifts a skip connection of `channels` behind `joined` ones of the UNet."""

    feature_channels: int
    channels: int
    joined: int


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """An adapter by which `channels` of the UNet attend to a feature."""

    feature_channels: int
    channels: int


AdapterSpec = ShiftSpec | AttentionSpec


@dataclass(frozen=True, slots=True)
class SupirConfig:
    """Configuration of the network.

    `adapters` are in order of the file, from the UNet's last block to its middle. `encoder` is that of an encoder of
    degraded images, None for a file without one.
    """

    control: UnetConfig
    adapters: tuple[AdapterSpec, ...]
    inner_channels: int = 128
    encoder: VaeConfig | None = None


def out_channels(block: BlockSpec) -> int:
    """Return the channels behind a block of a UNet."""
    last = block[-1]
    return last.channels if isinstance(last, TransformerSpec) else last.out_channels


@dataclass(frozen=True, slots=True)
class BlockAdapters:
    """Numbers of the adapters of an output block, and of the feature that they read.

    `attention` works before the block enlarges; None for a block that does not.
    """

    feature: int
    shift: int
    attention: int | None


def adapters_of(unet: UnetConfig) -> tuple[AdapterSpec, ...]:
    """Return the adapters that a UNet needs, in order of the file."""
    features = [out_channels(block) for block in (*unet.input_blocks, unet.middle_block)]
    found: list[AdapterSpec] = [ShiftSpec(features[-1], features[-1], 0)]
    for block, feature in zip(unet.output_blocks, reversed(features[:-1]), strict=True):
        first = block[0]
        assert isinstance(first, ResSpec)
        found.append(ShiftSpec(feature, feature, first.in_channels - feature))
        found += [AttentionSpec(feature, spec.channels) for spec in block if isinstance(spec, UpSpec)]
    return tuple(reversed(found))


def block_adapters(adapters: Sequence[AdapterSpec]) -> tuple[BlockAdapters, ...]:
    """Return the adapters of each output block in order, by their numbers."""
    num_blocks = sum(isinstance(spec, ShiftSpec) for spec in adapters) - 1
    found: list[BlockAdapters] = []
    number = len(adapters) - 2  # the last is the middle's
    for feature in reversed(range(num_blocks)):
        enlarges = number > 0 and isinstance(adapters[number - 1], AttentionSpec)
        found.append(BlockAdapters(feature, number, number - 1 if enlarges else None))
        number -= 2 if enlarges else 1
    return tuple(found)


class ShiftAdapter(nn.Module):
    """Norms, scales and shifts the UNet's values by a feature."""

    def __init__(self, spec: ShiftSpec, inner_channels: int) -> None:
        super().__init__()
        joined = spec.channels + spec.joined
        self.param_free_norm = GroupNorm(GROUPS, joined)
        self.mlp_shared = nn.Sequential(Conv2d(spec.feature_channels, inner_channels, 3, padding=1), nn.SiLU())
        self.zero_mul = Conv2d(inner_channels, joined, 3, padding=1)
        self.zero_add = Conv2d(inner_channels, joined, 3, padding=1)
        self.zero_conv = Conv2d(spec.feature_channels, spec.channels, 1)

    def forward(
        self, feature: torch.Tensor, x: torch.Tensor, before: torch.Tensor | None, strength: float
    ) -> torch.Tensor:
        """Return a skip connection `x` [B, C, h, w] joined behind what comes `before` it [B, C', h, w], changed."""
        h = x + self.zero_conv(feature)
        plain = x
        if before is not None:
            h, plain = torch.cat([before, h], dim=1), torch.cat([before, x], dim=1)
        shared = self.mlp_shared(feature)
        scale, shift = self.zero_mul(shared), self.zero_add(shared)
        normed = self.param_free_norm(h)
        return torch.lerp(plain, torch.addcmul(normed + shift, normed, scale), strength)


class FeatureAttention(nn.Module):
    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__()
        channels, features = spec.channels, spec.feature_channels
        self.heads = channels // HEAD_CHANNELS
        self.to_q = Linear(channels, channels, bias=False)
        self.to_k, self.to_v = (Linear(features, channels, bias=False) for _ in range(2))
        self.to_out = nn.Sequential(Linear(channels, channels))

    def forward(self, x: torch.Tensor, feature: torch.Tensor) -> torch.Tensor:
        attended = optimized_attention(self.to_q(x), self.to_k(feature), self.to_v(feature), self.heads)
        out: torch.Tensor = self.to_out(attended)
        return out


class AttentionAdapter(nn.Module):
    """Adds to the UNet's values [B, C, h, w] what they find in a feature [B, C', h', w']."""

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__()
        self.attn = FeatureAttention(spec)
        self.norm1, self.norm2 = GroupNorm(GROUPS, spec.channels), GroupNorm(GROUPS, spec.feature_channels)

    def forward(self, feature: torch.Tensor, x: torch.Tensor, strength: float) -> torch.Tensor:
        tokens = self.norm1(x).flatten(2).transpose(1, 2)  # [B, h*w, C]
        found = self.attn(tokens, self.norm2(feature).flatten(2).transpose(1, 2))
        out: torch.Tensor = x + found.transpose(1, 2).reshape(x.shape) * strength
        return out


class ImageReader(nn.Module):
    """The first half of the UNet, which reads a second latent."""

    def __init__(self, config: UnetConfig) -> None:
        super().__init__()
        self.model_channels = config.model_channels
        width = config.model_channels * 4
        self.time_embed = nn.Sequential(Linear(config.model_channels, width), nn.SiLU(), Linear(width, width))
        self.label_emb = label_embedding(config.label_dim, width)
        self.input_blocks = nn.ModuleList(build_block(spec, config, width) for spec in config.input_blocks)
        self.middle_block = build_block(config.middle_block, config, width)
        self.input_hint_block = build_block((ConvSpec(config.in_channels, config.model_channels),), config, width)

    def forward(
        self, image: torch.Tensor, x: torch.Tensor, timesteps: torch.Tensor, context: torch.Tensor, y: torch.Tensor
    ) -> list[torch.Tensor]:
        """Return the features [B, C, h, w] of the blocks, the middle's last.

        They are those of an image's latent and of a noisy one `x` [B, 4, h, w], by time [B], text [B, T, D] and
        labels.
        """
        emb = self.time_embed(timestep_embedding(timesteps, self.model_channels).to(x.dtype)) + self.label_emb(y)
        features = []
        h = x
        for index, block in enumerate(self.input_blocks):
            h = block(h, emb, context)
            if index == 0:
                h = h + self.input_hint_block(image, emb, context)
            features.append(h)
        return [*features, self.middle_block(h, emb, context)]


class Supir(nn.Module):
    def __init__(self, config: SupirConfig) -> None:
        super().__init__()
        self.config = config
        self.by_block = block_adapters(config.adapters)
        self.control_model = ImageReader(config.control)
        self.project_modules = nn.ModuleList(
            ShiftAdapter(spec, config.inner_channels) if isinstance(spec, ShiftSpec) else AttentionAdapter(spec)
            for spec in config.adapters
        )
        if config.encoder is not None:
            self.denoise_encoder = Encoder(config.encoder)
