"""Stable Diffusion 1: key names and configurations as data."""

from __future__ import annotations

from engine.architectures.autoencoder_kl import VaeConfig
from engine.architectures.clip_text import ClipTextConfig
from engine.architectures.latent_unet import (
    BlockSpec,
    ConvSpec,
    DownSpec,
    LayerSpec,
    ResSpec,
    TransformerSpec,
    UnetConfig,
    UpSpec,
)

NAME = "sd15"
CONTEXT_DIM = 768
UNET_PREFIX = "model.diffusion_model."
VAE_PREFIX = "first_stage_model."
TEXT_PREFIX = "cond_stage_model."

# Where files of one network alone put its tensors.
UNET_PREFIXES = (UNET_PREFIX, "diffusion_model.", "")
VAE_PREFIXES = (VAE_PREFIX, "vae.", "")
TEXT_PREFIXES = ("cond_stage_model.transformer.", "clip_l.transformer.", "transformer.", "")

CHANNEL_MULT = (1, 2, 4, 4)


def unet_config(
    model_channels: int = 320,
    context_dim: int = CONTEXT_DIM,
    channel_mult: tuple[int, ...] = CHANNEL_MULT,
    blocks_per_level: int = 2,
    in_channels: int = 4,
) -> UnetConfig:
    """The layers of SD1's UNet at any width: transformers on all levels but the lowest."""
    widths = [model_channels * factor for factor in channel_mult]
    inputs: list[BlockSpec] = [(ConvSpec(in_channels, model_channels),)]
    channels, skips = model_channels, [model_channels]
    for level, width in enumerate(widths):
        lowest = level == len(widths) - 1
        for _ in range(blocks_per_level):
            layers: list[LayerSpec] = [ResSpec(channels, width)]
            if not lowest:
                layers.append(TransformerSpec(width, 1, context_dim))
            inputs.append(tuple(layers))
            channels = width
            skips.append(channels)
        if not lowest:
            inputs.append((DownSpec(channels, channels),))
            skips.append(channels)
    middle = (ResSpec(channels, channels), TransformerSpec(channels, 1, context_dim), ResSpec(channels, channels))
    outputs: list[BlockSpec] = []
    for level, width in reversed(list(enumerate(widths))):
        for index in range(blocks_per_level + 1):
            layers = [ResSpec(channels + skips.pop(), width)]
            channels = width
            if level < len(widths) - 1:
                layers.append(TransformerSpec(width, 1, context_dim))
            if level and index == blocks_per_level:
                layers.append(UpSpec(width, width))
            outputs.append(tuple(layers))
    return UnetConfig(in_channels, 4, model_channels, tuple(inputs), middle, tuple(outputs))


# What random checkpoints are made of: the real network, and one whose file is a few ten MB.
SCALES: dict[str, tuple[UnetConfig, ClipTextConfig, VaeConfig]] = {
    "full": (unet_config(), ClipTextConfig(), VaeConfig()),
    "small": (
        unet_config(model_channels=64, context_dim=64, channel_mult=(1, 1, 2, 2), blocks_per_level=1),
        ClipTextConfig(num_layers=2, width=64, heads=1, inner_width=128),
        VaeConfig(base_channels=32, level_channels=(32, 32, 64, 64), blocks_per_level=1),
    ),
}
