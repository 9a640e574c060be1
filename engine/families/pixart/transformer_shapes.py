"""The configuration of a PixArt transformer, read from the shapes of its tensors. Pure."""

from __future__ import annotations

import math

from engine.families.pixart.transformer import BASE_CELLS, PixArtConfig
from engine.layers.patches import PATCH
from engine.layers.unet_shapes import Shapes, count_children

MARK = "t_block.1.weight"
CAPTIONS = "y_embedder.y_proj.fc1.weight"
SIZES = "ar_embedder.mlp.0.weight"
DROPPED = "y_embedder.y_embedding"  # files of the diffusers library lack it; it is not read when a picture is drawn
NUM_CAPTIONS = 300
PLACES = "pos_embed"  # [1, patches, D] of files that hold the places of their size


def pixart_config(shapes: Shapes) -> PixArtConfig:
    """Return the configuration of the network with these tensors (names without prefix).

    Raises LookupError for a missing tensor.
    """
    width, context_dim = shapes[CAPTIONS]
    side = None if PLACES not in shapes else math.isqrt(shapes[PLACES][1]) * PATCH
    return PixArtConfig(
        width=width,
        num_blocks=count_children(shapes, "blocks"),
        context_dim=context_dim,
        reads_sizes=SIZES in shapes,
        interpolation=None if side is None else float(side // BASE_CELLS or side / BASE_CELLS),
        in_channels=shapes["x_embedder.proj.weight"][1],
        out_channels=shapes["final_layer.linear.weight"][0] // PATCH**2,
        inner_width=shapes["blocks.0.mlp.fc1.weight"][0],
        num_captions=shapes[DROPPED][0] if DROPPED in shapes else NUM_CAPTIONS,
    )
