"""The tokenizer of Cosmos 1: its files, and the numbers of its latents."""

from __future__ import annotations

from dataclasses import replace

import torch

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.base import NotRecognised, Shape, Shapes
from darkroom.engine.families.cosmos1.tokenizer import (
    MARK,
    CosmosTokenizer,
    CosmosTokenizerConfig,
    cosmos_tokenizer_config,
)
from darkroom.engine.families.vae_files import vae_network

LATENT_CHANNELS = 16


class CosmosLatentFormat(LatentFormat):
    """Latents [B, 16, f, h, w], which the VAE standardises. The colours are the community's."""

    latent_channels = LATENT_CHANNELS
    latent_dimensions = 3
    temporal_downscale_ratio = 8
    latent_rgb_factors = (
        (0.1817, 0.2284, 0.2423), (-0.0586, -0.0862, -0.3108), (-0.4703, -0.4255, -0.3995), (0.0803, 0.1963, 0.1001),
        (-0.0820, -0.1050, 0.0400), (0.2511, 0.3098, 0.2787), (-0.1830, -0.2117, -0.0040), (-0.0621, -0.2187, -0.0939),
        (0.3619, 0.1082, 0.1455), (0.3164, 0.3922, 0.2575), (0.1152, 0.0231, -0.0462), (-0.1434, -0.3609, -0.3665),
        (0.0635, 0.1471, 0.1680), (-0.3635, -0.1963, -0.3248), (-0.1865, 0.0365, 0.2346), (0.0447, 0.0994, 0.0881),
    )  # fmt: skip
    latent_rgb_factors_bias = (-0.1223, -0.1889, -0.1976)


def _configure(shapes: Shapes) -> CosmosTokenizerConfig:
    if MARK not in shapes or "encoder.conv_in.0.conv3d.weight" not in shapes:
        raise NotRecognised("a VAE of videos without encoder or decoder")
    channels = shapes[MARK][1]
    if channels != LATENT_CHANNELS:
        raise NotRecognised(f"a VAE of videos of {channels} latent channels, of another family")
    return cosmos_tokenizer_config(shapes)


def _zeros(shape: Shape) -> torch.Tensor:
    return torch.zeros(shape)


def _ones(shape: Shape) -> torch.Tensor:
    return torch.ones(shape)


AUTOENCODER = replace(
    vae_network(
        MARK,
        _configure,
        CosmosTokenizer,
        ("bfloat16",),
        sizes={
            "full": CosmosTokenizerConfig(),
            "small": CosmosTokenizerConfig(channels=32, level_channels=(32, 64, 64), blocks_per_level=1),
        },
    ),
    defaults={"latent_mean": _zeros, "latent_std": _ones},
    float32_ends=("latent_mean", "latent_std"),
)
