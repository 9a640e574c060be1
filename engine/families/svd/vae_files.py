"""The autoencoders of Stable Video Diffusion, with a decoder for videos, and of SV3D, that of images."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from darkroom.engine.families.base import Network, NotRecognised, Shapes, Tensors
from darkroom.engine.families.layouts import behind_first, saved_behind
from darkroom.engine.families.sd15.vae_files import AUTOENCODER_KL, MARK, PREFIX, PREFIXES
from darkroom.engine.families.svd.vae import SvdVae
from darkroom.engine.layers.vae_kl import TEMPORAL_MARK, AutoencoderKl, VaeConfig, vae_config

ORBIT_PREFIX = "conditioner.embedders.1.encoder."  # SV3D's checkpoints have it where the image is encoded


def _configure(shapes: Shapes) -> VaeConfig:
    if MARK not in shapes or "encoder.conv_in.weight" not in shapes:
        raise NotRecognised("a VAE without encoder or decoder")
    if TEMPORAL_MARK not in shapes and "post_quant_conv.weight" not in shapes:
        raise NotRecognised("a VAE of another family")
    return vae_config(shapes)


def _build(config: VaeConfig) -> nn.Module:
    return SvdVae(config) if config.is_temporal else AutoencoderKl(config)


def _saved(tensors: Tensors) -> dict[str, torch.Tensor]:
    return saved_behind(PREFIX if TEMPORAL_MARK in tensors else ORBIT_PREFIX, tensors)


AUTOENCODER_VIDEO = Network(
    layouts=(behind_first(PREFIXES, MARK),),
    in_checkpoint=(behind_first((ORBIT_PREFIX, PREFIX), MARK),),
    configure=_configure,
    build=_build,
    saved=_saved,
    dtypes=AUTOENCODER_KL.dtypes,
    sizes={name: replace(size, is_temporal=True) for name, size in AUTOENCODER_KL.sizes.items()},
)
