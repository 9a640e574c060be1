"""The configuration of a Flux.2 transformer, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from engine.families.flux2.transformer import Flux2Config
from engine.layers.unet_shapes import Shapes, count_children

MARK = "double_stream_modulation_img.lin.weight"
GUIDANCE = "guidance_in.in_layer.weight"


def flux2_config(shapes: Shapes) -> Flux2Config:
    """Return the configuration of the network with these tensors (names without prefix)."""
    width, context_dim = shapes["txt_in.weight"]
    return Flux2Config(
        width=width,
        num_double=count_children(shapes, "double_blocks"),
        num_single=count_children(shapes, "single_blocks"),
        context_dim=context_dim,
        in_channels=shapes["img_in.weight"][1],
        out_channels=shapes["final_layer.linear.weight"][0],
        has_guidance=GUIDANCE in shapes,
        inner_factor=shapes["double_blocks.0.img_mlp.2.weight"][1] // width,
    )
