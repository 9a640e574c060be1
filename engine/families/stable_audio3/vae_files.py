"""The autoencoders of Stable Audio 3: their files, and the numbers of their latents."""

from __future__ import annotations

from dataclasses import replace

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.base import Layout, Shapes
from darkroom.engine.families.stable_audio3.vae import (
    MARK,
    SAMPLES_PER_CELL,
    SameVae,
    SameVaeConfig,
    same_vae_config,
)
from darkroom.engine.families.weight_norm_layout import audio_autoencoder
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.settings import DtypePolicy

UNUSED = "bottleneck.noise_scaling_factor"  # of no channels


def _without_unused(layout: Layout) -> Layout:
    def used(shapes: Shapes) -> Names | None:
        names = layout(shapes)
        return None if names is None else {name: item for name, item in names.items() if name != UNUSED}

    return used


_WHOLE = audio_autoencoder(
    "pretransform.model.",
    MARK,
    configure=same_vae_config,
    build=SameVae,
    sizes={
        "full": SameVaeConfig(),
        "small": SameVaeConfig(hidden_size=64, num_layers=2, intermediate_size=64, kernel=3),
    },
    dtypes=DtypePolicy(prefers=("bfloat16", "float16")),
)
AUTOENCODER = replace(
    _WHOLE,
    layouts=tuple(_without_unused(layout) for layout in _WHOLE.layouts),
    in_checkpoint=tuple(_without_unused(layout) for layout in _WHOLE.in_checkpoint),
)


class StableAudio3LatentFormat(LatentFormat):
    """Latents of 256 channels and one axis, not scaled."""

    latent_channels = 256
    latent_dimensions = 1
    temporal_downscale_ratio = SAMPLES_PER_CELL
