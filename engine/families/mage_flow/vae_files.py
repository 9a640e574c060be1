"""Files of Mage-VAE, in the layout in which Microsoft publishes it and in that of checkpoints."""

from __future__ import annotations

from functools import partial

from darkroom.engine.families.base import Network, Shapes
from darkroom.engine.families.layouts import behind_first, names_behind, saved_behind
from darkroom.engine.families.mage_flow.vae import DECODER, ENCODER, MARK, MageVae, MageVaeConfig, mage_vae_config
from darkroom.engine.families.vae_files import PREFIX, PREFIXES
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.settings import DtypePolicy

PUBLISHED = {f"student.{ENCODER}.": f"{ENCODER}.", "pipeline.": f"{DECODER}."}  # prefixes of published files -> ours
PUBLISHED_MARK = f"student.{MARK}"
# Of the autoencoder of Flux.2 in published files, whose latents the network was trained towards; nothing reads them.
UNUSED = tuple(f"{DECODER}.y_embedder.{part}." for part in ("encoder", "bottleneck"))
SMALL = MageVaeConfig(
    hidden_size=64, head_size=32, pixel_size=8, intermediate_factor=2, num_head_blocks=1, num_encoder_blocks=2,
    num_decoder_blocks=2, num_pixel_blocks=1,
)  # fmt: skip


def published_layout(shapes: Shapes) -> Names | None:
    """Return the names of a file in the layout in which Microsoft publishes the autoencoder, else None."""
    prefix = next((prefix for prefix in PREFIXES if prefix + PUBLISHED_MARK in shapes), None)
    if prefix is None:
        return None
    behind = names_behind(shapes, prefix)
    found = {
        ours + name.removeprefix(theirs): file_name
        for theirs, ours in PUBLISHED.items()
        for name, file_name in behind.items()
        if name.startswith(theirs)
    }
    return {name: file_name for name, file_name in found.items() if not name.startswith(UNUSED)}


MAGE_VAE = Network(
    layouts=(published_layout, behind_first(PREFIXES, MARK)),
    in_checkpoint=(published_layout, behind_first((PREFIX,), MARK)),
    configure=mage_vae_config,
    build=MageVae,
    saved=partial(saved_behind, PREFIX),
    dtypes=DtypePolicy(prefers=("bfloat16",)),
    sizes={"full": MageVaeConfig(), "small": SMALL},
)
