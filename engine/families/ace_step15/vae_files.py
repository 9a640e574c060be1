"""The autoencoder of ACE-Step 1.5, Stable Audio's with other strides: its files, and the numbers of its latents."""

from __future__ import annotations

from dataclasses import replace

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.base import NotRecognised, Shapes
from darkroom.engine.families.stable_audio.vae import MARK, OobleckVae, OobleckVaeConfig, oobleck_vae_config
from darkroom.engine.families.weight_norm_layout import audio_autoencoder
from darkroom.engine.settings import DtypePolicy

SAMPLE_RATE_HZ, STRIDES = 48000, (2, 4, 4, 6, 10)
SAMPLES_PER_CELL = 1764  # at 44.1 kHz; 1920 at its own rate
FULL = OobleckVaeConfig(strides=STRIDES, sample_rate_hz=SAMPLE_RATE_HZ)


def _configure(shapes: Shapes) -> OobleckVaeConfig:
    config = oobleck_vae_config(shapes)
    if config.strides != STRIDES:
        raise NotRecognised(f"a VAE of audio with {config.samples_per_cell} samples a latent cell, of another family")
    return replace(config, sample_rate_hz=SAMPLE_RATE_HZ)


AUTOENCODER = audio_autoencoder(
    "vae.",
    MARK,
    configure=_configure,
    build=OobleckVae,
    sizes={"full": FULL, "small": replace(FULL, channels=8)},
    dtypes=DtypePolicy(prefers=("float16", "bfloat16")),
)


class AceStep15LatentFormat(LatentFormat):
    """Latents of 64 channels and one axis, not scaled."""

    latent_channels = 64
    latent_dimensions = 1
    temporal_downscale_ratio = SAMPLES_PER_CELL
