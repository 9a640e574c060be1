"""The autoencoder of Flux.2, whose latents are packed and normalised: its files, and the colours of its latents."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.base import Network, NotRecognised, Shapes
from darkroom.engine.families.flux2.vae import NORM_MARK, Flux2Vae, unpacked
from darkroom.engine.families.layouts import behind_first, saved_behind
from darkroom.engine.families.sd15.vae_files import AUTOENCODER_KL, PREFIXES
from darkroom.engine.layers.vae_kl import VaeConfig, vae_config
from darkroom.engine.settings import DtypePolicy

CHANNELS = 32  # before four cells become one
PREFIX = "vae."
FULL = replace(AUTOENCODER_KL.sizes["full"], latent_channels=CHANNELS, embedding_channels=CHANNELS)
SMALL = replace(FULL, base_channels=32, level_channels=(32, 64, 128, 128))


class Flux2LatentFormat(LatentFormat):
    """Latent format of packed cells, which are normalised already.

    The table of colours is public knowledge of the community.
    """

    latent_channels = 128
    spacial_downscale_ratio = 16
    latent_rgb_factors = (
        (0.0058, 0.0113, 0.0073), (0.0495, 0.0443, 0.0836), (-0.0099, 0.0096, 0.0644), (0.2144, 0.3009, 0.3652),
        (0.0166, -0.0039, -0.0054), (0.0157, 0.0103, -0.0160), (-0.0398, 0.0902, -0.0235), (-0.0052, 0.0095, 0.0109),
        (-0.3527, -0.2712, -0.1666), (-0.0301, -0.0356, -0.0180), (-0.0107, 0.0078, 0.0013), (0.0746, 0.0090, -0.0941),
        (0.0156, 0.0169, 0.0070), (-0.0034, -0.0040, -0.0114), (0.0032, 0.0181, 0.0080), (-0.0939, -0.0008, 0.0186),
        (0.0018, 0.0043, 0.0104), (0.0284, 0.0056, -0.0127), (-0.0024, -0.0022, -0.0030), (0.1207, -0.0026, 0.0065),
        (0.0128, 0.0101, 0.0142), (0.0137, -0.0072, -0.0007), (0.0095, 0.0092, -0.0059), (0.0000, -0.0077, -0.0049),
        (-0.0465, -0.0204, -0.0312), (0.0095, 0.0012, -0.0066), (0.0290, -0.0034, 0.0025), (0.0220, 0.0169, -0.0048),
        (-0.0332, -0.0457, -0.0468), (-0.0085, 0.0389, 0.0609), (-0.0076, 0.0003, -0.0043), (-0.0111, -0.0460, -0.0614),
    )  # fmt: skip
    latent_rgb_factors_bias = (-0.0329, -0.0718, -0.0851)
    latent_rgb_factors_reshape = staticmethod(unpacked)


def _configure(shapes: Shapes) -> VaeConfig:
    if "encoder.conv_in.weight" not in shapes or "decoder.conv_in.weight" not in shapes:
        raise NotRecognised("a VAE without encoder or decoder")
    return vae_config(shapes)


AUTOENCODER = Network(
    layouts=(behind_first(PREFIXES, NORM_MARK),),
    in_checkpoint=(behind_first((PREFIX,), NORM_MARK),),
    configure=_configure,
    build=Flux2Vae,
    sizes={
        **dict.fromkeys(("full", "klein_4b", "klein_9b"), FULL),
        **dict.fromkeys(("small", "small_klein_4b", "small_klein_9b"), SMALL),
    },
    saved=partial(saved_behind, PREFIX),
    dtypes=DtypePolicy(prefers=("bfloat16",)),
)
