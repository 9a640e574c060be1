"""The KL autoencoder of latent diffusion, eightfold and of four channels: its files, and the numbers of its latents."""

from __future__ import annotations

from functools import partial

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.base import Network, NotRecognised, Shapes
from darkroom.engine.families.layouts import behind_first, saved_behind
from darkroom.engine.formats.weight_file import Names, shape_of
from darkroom.engine.layers.diffusers_names import vae_names
from darkroom.engine.layers.vae_kl import TEMPORAL_MARK, AutoencoderKl, VaeConfig, vae_config
from darkroom.engine.settings import DtypePolicy

PREFIX = "first_stage_model."
PREFIXES = (PREFIX, "vae.", "")  # of files of the network alone
MARK = "decoder.conv_in.weight"
DIFFUSERS_MARK = "decoder.up_blocks.0.resnets.0.norm1.weight"
LATENT_CHANNELS = 4
NUM_IMAGE_AXES = 4  # of a convolution's weight; those of videos have one more


class Sd15LatentFormat(LatentFormat):
    """Latent format with a factor of 0.18215 for unit variance (Rombach et al. 2022, arXiv 2112.10752).

    The table of colours is public knowledge of the community (fitted by least squares).
    """

    latent_channels = LATENT_CHANNELS
    scale_factor = 0.18215
    latent_rgb_factors = (
        (0.3512, 0.2297, 0.3227),
        (0.3250, 0.4974, 0.2350),
        (-0.2829, 0.1762, 0.2721),
        (-0.2120, -0.2616, -0.7177),
    )
    taesd_decoder_name = "taesd_decoder"
    blank = (0.8223, -0.6876, 0.6364, 0.1380)


def _diffusers_layout(shapes: Shapes) -> Names | None:
    is_of_images = DIFFUSERS_MARK in shapes and len(shapes.get(MARK, ())) == NUM_IMAGE_AXES
    return vae_names(shapes) if is_of_images else None


def _configure(shapes: Shapes) -> VaeConfig:
    if MARK not in shapes or "encoder.conv_in.weight" not in shapes:
        raise NotRecognised("a VAE without encoder or decoder")
    if TEMPORAL_MARK in shapes:
        raise NotRecognised("a VAE of videos")
    if shapes[MARK][1] != LATENT_CHANNELS or "post_quant_conv.weight" not in shapes:
        raise NotRecognised(f"a VAE of {shapes[MARK][1]} latent channels of another family")
    return vae_config(shapes)


_own_layout = behind_first(PREFIXES, MARK)


def _image_layout(shapes: Shapes) -> Names | None:
    names = _own_layout(shapes)
    return names if names is not None and len(shape_of(names[MARK], shapes)) == NUM_IMAGE_AXES else None


LAYOUTS = (_diffusers_layout, _image_layout)


def autoencoder_kl(prefix: str = PREFIX) -> Network:
    """Describe the autoencoder of a family whose checkpoints have it behind `prefix`."""
    return Network(
        layouts=LAYOUTS,
        in_checkpoint=(behind_first((prefix,), MARK),),
        configure=_configure,
        build=AutoencoderKl,
        saved=partial(saved_behind, prefix),
        dtypes=DtypePolicy(prefers=("bfloat16",)),  # float16 overflows, and is taken only when asked for
        sizes={
            "full": VaeConfig(base_channels=128, level_channels=(128, 256, 512, 512), blocks_per_level=2),
            "small": VaeConfig(base_channels=32, level_channels=(32, 32, 64, 64), blocks_per_level=1),
        },
    )


AUTOENCODER_KL = autoencoder_kl()
