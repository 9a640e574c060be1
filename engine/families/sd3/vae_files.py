"""The KL autoencoder of 16 channels (Esser et al. 2024, arXiv 2403.03206, section 5.2.1): its files.

Families have numbers of their own for its latents; those of Flux.1 are used by several. Some of its files have the 1x1
convolutions of the older one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from darkroom.engine.families.base import Network, NotRecognised, Shapes
from darkroom.engine.families.layouts import behind_first, saved_behind
from darkroom.engine.families.sd15.vae_files import AUTOENCODER_KL, LAYOUTS, MARK, PREFIX
from darkroom.engine.layers.vae_kl import TEMPORAL_MARK, AutoencoderKl, VaeConfig, vae_config
from darkroom.engine.settings import DtypePolicy

LATENT_CHANNELS = 16
SIZES = {
    name: replace(size, latent_channels=LATENT_CHANNELS, embedding_channels=0)
    for name, size in AUTOENCODER_KL.sizes.items()
}


def _configure(shapes: Shapes) -> VaeConfig:
    if MARK not in shapes or "encoder.conv_in.weight" not in shapes:
        raise NotRecognised("a VAE without encoder or decoder")
    if TEMPORAL_MARK in shapes:
        raise NotRecognised("a VAE of videos")
    if shapes[MARK][1] != LATENT_CHANNELS:
        raise NotRecognised(f"a VAE of {shapes[MARK][1]} latent channels of another family")
    return vae_config(shapes)


def autoencoder_16(prefix: str = PREFIX) -> Network:
    """Describe the autoencoder of a family whose checkpoints have it behind `prefix`."""
    return Network(
        layouts=LAYOUTS,
        in_checkpoint=(behind_first((prefix,), MARK),),
        configure=_configure,
        build=AutoencoderKl,
        saved=partial(saved_behind, prefix),
        dtypes=DtypePolicy(prefers=("bfloat16",)),  # float16 overflows, and is taken only when asked for
        sizes=SIZES,
    )
