"""The configuration of a Flux transformer, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from engine.families.flux.transformer import FluxConfig
from engine.layers.patches import PATCH
from engine.layers.unet_shapes import Shapes, count_children

MARK = "double_blocks.0.img_attn.norm.key_norm.scale"
GUIDANCE = "guidance_in.in_layer.weight"


def flux_config(shapes: Shapes) -> FluxConfig:
    """Return the configuration of the network with these tensors (names without prefix)."""
    width, context_dim = shapes["txt_in.weight"]
    return FluxConfig(
        width=width,
        num_double=count_children(shapes, "double_blocks"),
        num_single=count_children(shapes, "single_blocks"),
        context_dim=context_dim,
        label_dim=shapes["vector_in.in_layer.weight"][1],
        in_channels=shapes["img_in.weight"][1] // PATCH**2,
        out_channels=shapes["final_layer.linear.weight"][0] // PATCH**2,
        has_guidance=GUIDANCE in shapes,
        inner_factor=shapes["double_blocks.0.img_mlp.0.weight"][0] // width,
    )
