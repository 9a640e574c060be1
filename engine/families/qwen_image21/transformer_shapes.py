"""The configuration of a Qwen-Image 2.1 transformer, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from engine.families.qwen_image21.layers import QwenImage21Config
from engine.layers.unet_shapes import Shapes, count_children

MARK = "txt_in.text_norm.weight"
MODULATION = "modulation.1.weight"
FEED_FORWARD = "transformer_blocks.0.img_mlp"


def qwen_image21_config(shapes: Shapes) -> QwenImage21Config:
    """Return the configuration of the network with these tensors (names without prefix)."""
    width, in_channels = shapes["img_in.weight"]
    return QwenImage21Config(
        width=width,
        num_blocks=count_children(shapes, "transformer_blocks"),
        context_dim=shapes[MARK][0],
        inner_width=shapes[f"{FEED_FORWARD}.out.weight"][1],
        in_channels=in_channels,
        time_width=shapes["time_text_embed.timestep_embedder.linear_1.weight"][1],
        joins_gates=f"{FEED_FORWARD}.gate_up.weight" in shapes,
    )
