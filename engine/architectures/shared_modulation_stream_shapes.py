"""The configuration of a Flux.2 transformer, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from engine.architectures.latent_unet_shapes import Shapes, count_children
from engine.architectures.shared_modulation_stream import SharedModulationConfig

MARK = "double_stream_modulation_img.lin.weight"
GUIDANCE = "guidance_in.in_layer.weight"


def shared_modulation_config(shapes: Shapes) -> SharedModulationConfig:
    """Return the configuration of the network with these tensors (names without prefix)."""
    width, context_dim = shapes["txt_in.weight"]
    return SharedModulationConfig(
        width=width,
        num_double=count_children(shapes, "double_blocks"),
        num_single=count_children(shapes, "single_blocks"),
        context_dim=context_dim,
        in_channels=shapes["img_in.weight"][1],
        out_channels=shapes["final_layer.linear.weight"][0],
        has_guidance=GUIDANCE in shapes,
        inner_factor=shapes["double_blocks.0.img_mlp.2.weight"][1] // width,
    )
