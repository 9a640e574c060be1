"""The configuration of a Chroma transformer, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from engine.families.chroma.transformer import ChromaConfig
from engine.layers.patches import PATCH
from engine.layers.unet_shapes import Shapes, count_children

MARK = "distilled_guidance_layer.norms.0.scale"


def chroma_config(shapes: Shapes) -> ChromaConfig:
    """Return the configuration of the network with these tensors (names without prefix)."""
    width, context_dim = shapes["txt_in.weight"]
    return ChromaConfig(
        width=width,
        num_double=count_children(shapes, "double_blocks"),
        num_single=count_children(shapes, "single_blocks"),
        context_dim=context_dim,
        approximator_width=shapes["distilled_guidance_layer.in_proj.weight"][0],
        approximator_layers=count_children(shapes, "distilled_guidance_layer.layers"),
        in_channels=shapes["img_in.weight"][1] // PATCH**2,
        out_channels=shapes["final_layer.linear.weight"][0] // PATCH**2,
        inner_factor=shapes["double_blocks.0.img_mlp.0.weight"][0] // width,
    )
