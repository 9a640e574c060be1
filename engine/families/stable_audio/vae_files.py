"""The autoencoder of Stable Audio: its files, and the numbers of its latents."""

from __future__ import annotations

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.base import NotRecognised, Shapes
from darkroom.engine.families.stable_audio.vae import (
    MARK,
    SAMPLES_PER_CELL,
    STRIDES,
    OobleckVae,
    OobleckVaeConfig,
    oobleck_vae_config,
)
from darkroom.engine.families.weight_norm_layout import audio_autoencoder
from darkroom.engine.settings import DtypePolicy


def _configure(shapes: Shapes) -> OobleckVaeConfig:
    config = oobleck_vae_config(shapes)
    if config.strides != STRIDES:
        raise NotRecognised(f"a VAE of audio with {config.samples_per_cell} samples a latent cell, of another family")
    return config


AUTOENCODER = audio_autoencoder(
    "pretransform.model.",
    MARK,
    configure=_configure,
    build=OobleckVae,
    sizes={"full": OobleckVaeConfig(), "small": OobleckVaeConfig(channels=8)},
    dtypes=DtypePolicy(prefers=("float16", "bfloat16")),
)


class StableAudioLatentFormat(LatentFormat):
    """Latents of 64 channels and one axis, not scaled."""

    latent_channels = 64
    latent_dimensions = 1
    temporal_downscale_ratio = SAMPLES_PER_CELL
