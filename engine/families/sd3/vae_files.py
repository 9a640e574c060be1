"""The KL autoencoder of 16 channels (Esser et al. 2024, arXiv 2403.03206, section 5.2.1): its files.

Families have numbers of their own for its latents; those of Flux.1 are used by several. Some of its files have the 1x1
convolutions of the older one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from engine.diffusion.latent_format import ShiftedLatentFormat
from engine.families.base import Network, NotRecognised, Shapes
from engine.families.layouts import behind_first, saved_behind
from engine.families.sd15.vae_files import FULL as FULL_OF_4
from engine.families.sd15.vae_files import LAYOUTS, MARK, PREFIX
from engine.families.sd15.vae_files import SMALL as SMALL_OF_4
from engine.layers.vae_kl import AutoencoderKl, VaeConfig
from engine.layers.vae_kl_shapes import TEMPORAL_MARK, vae_config
from engine.settings import DtypePolicy

LATENT_CHANNELS = 16
FULL = replace(FULL_OF_4, latent_channels=LATENT_CHANNELS, embedding_channels=0)
SMALL = replace(SMALL_OF_4, latent_channels=LATENT_CHANNELS, embedding_channels=0)  # for tests


class FluxLatentFormat(ShiftedLatentFormat):
    """Latent format of the autoencoder that came with Flux.1.

    The table of colours is public knowledge of the community.
    """

    latent_channels = LATENT_CHANNELS
    scale_factor = 0.3611
    shift_factor = 0.1159
    latent_rgb_factors = (
        (-0.0346, 0.0244, 0.0681), (0.0034, 0.0210, 0.0687), (0.0275, -0.0668, -0.0433), (-0.0174, 0.0160, 0.0617),
        (0.0859, 0.0721, 0.0329), (0.0004, 0.0383, 0.0115), (0.0405, 0.0861, 0.0915), (-0.0236, -0.0185, -0.0259),
        (-0.0245, 0.0250, 0.1180), (0.1008, 0.0755, -0.0421), (-0.0515, 0.0201, 0.0011), (0.0428, -0.0012, -0.0036),
        (0.0817, 0.0765, 0.0749), (-0.1264, -0.0522, -0.1103), (-0.0280, -0.0881, -0.0499), (-0.1262, -0.0982, -0.0778),
    )  # fmt: skip
    latent_rgb_factors_bias = (-0.0329, -0.0718, -0.0851)
    taesd_decoder_name = "taef1_decoder"


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
    )
