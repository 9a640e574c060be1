"""The autoencoder of Stable Audio: its files, and the numbers of its latents."""

from __future__ import annotations

from functools import partial

from engine.architectures.oobleck_vae import MARK, OobleckVae, OobleckVaeConfig, oobleck_vae_config
from engine.architectures.weight_norm import first_names
from engine.diffusion.latent_format import LatentFormat
from engine.families.base import Layout, Network, Shapes
from engine.families.parts.layouts import saved_behind
from engine.formats.weight_file import Names
from engine.settings import DtypePolicy

PREFIX = "pretransform.model."
PREFIXES = (PREFIX, "vae.", "first_stage_model.", "")  # of files of the network alone

FULL = OobleckVaeConfig()
SMALL = OobleckVaeConfig(channels=8)


class StableAudioLatentFormat(LatentFormat):
    """Latents of 64 channels and one axis, not scaled."""

    latent_channels = 64
    latent_dimensions = 1


def normed_layout(prefixes: tuple[str, ...], mark: str) -> Layout:
    """Make a layout of files with weights of two parts, under either of torch's names, behind one of the prefixes."""

    def layout(shapes: Shapes) -> Names | None:
        prefix = next((prefix for prefix in prefixes if prefix + mark in shapes), None)
        if prefix is None:
            return None
        inner = {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}
        return {ours: prefix + theirs for ours, theirs in first_names(inner).items()}

    return layout


AUTOENCODER = Network(
    layouts=(normed_layout(PREFIXES, MARK),),
    in_checkpoint=(normed_layout((PREFIX,), MARK),),
    configure=oobleck_vae_config,
    build=OobleckVae,
    saved=partial(saved_behind, PREFIX),
    dtypes=DtypePolicy(prefers=("float16", "bfloat16")),
)
