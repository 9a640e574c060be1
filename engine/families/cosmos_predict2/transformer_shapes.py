"""The configuration of a low-rank transformer of videos, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from engine.families.cosmos_predict2.transformer import PATCH, CosmosPredict2Config
from engine.layers.unet_shapes import Shapes, count_children

MARK = "blocks.0.mlp.layer1.weight"
PATCHES = "x_embedder.proj.1.weight"
LARGE_WIDTH = 5120
PICTURE_CHANNELS = 16


def cosmos_predict2_config(shapes: Shapes) -> CosmosPredict2Config:
    """Return the configuration of the network with these tensors (names without prefix).

    Networks that continue pictures see the mask of what is given, and were trained at other sizes. Raises LookupError
    for a missing tensor.
    """
    width, patch_width = shapes[PATCHES]
    in_channels = patch_width // PATCH**2 - 1
    stretch = (1.0, 4.0, 4.0)
    if in_channels != PICTURE_CHANNELS:
        stretch = (5 / 6, 2.0, 2.0) if width == LARGE_WIDTH else (1.0, 3.0, 3.0)
    return CosmosPredict2Config(
        width=width,
        num_blocks=count_children(shapes, "blocks"),
        context_dim=shapes["blocks.0.cross_attn.k_proj.weight"][1],
        inner_width=shapes[MARK][0],
        rank=shapes["blocks.0.adaln_modulation_mlp.1.weight"][0],
        in_channels=in_channels,
        out_channels=shapes["final_layer.linear.weight"][0] // PATCH**2,
        stretch=stretch,
    )
