"""The autoencoder of networks that draw in pixels: its mark in files, and the numbers of its latents."""

from __future__ import annotations

from functools import partial

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.base import Network, Shapes
from darkroom.engine.families.layouts import saved_behind
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.layers.pixel_space import CHANNELS, PixelSpace, PixelSpaceConfig

PREFIX = "first_stage_model."
PREFIXES = (PREFIX, "vae.", "")  # of files of the network alone
MARK = "pixel_space_vae"


class PixelLatentFormat(LatentFormat):
    """Images [B, 3, H, W] of -1..1 as latents."""

    latent_channels = CHANNELS
    spacial_downscale_ratio = 1
    latent_rgb_factors = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))


def _layout(prefixes: tuple[str, ...], shapes: Shapes) -> Names | None:
    """Return the name of the mark alone: what else is behind its prefix is not of this network."""
    found = next((prefix + MARK for prefix in prefixes if prefix + MARK in shapes), None)
    return None if found is None else {MARK: found}


def _configure(shapes: Shapes) -> PixelSpaceConfig:
    return PixelSpaceConfig()


def pixel_space(prefix: str) -> Network:
    """Describe the autoencoder whose mark checkpoints of a family have behind that prefix."""
    return Network(
        layouts=(partial(_layout, PREFIXES),),
        in_checkpoint=(partial(_layout, (prefix,)),),
        configure=_configure,
        build=PixelSpace,
        sizes=dict.fromkeys(("full", "small"), PixelSpaceConfig()),
        saved=partial(saved_behind, prefix),
    )


PIXEL_SPACE = pixel_space(PREFIX)
