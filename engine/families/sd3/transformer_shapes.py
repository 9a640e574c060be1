"""The configuration of a Stable Diffusion 3 transformer, read from the shapes of its tensors. Pure."""

from __future__ import annotations

import math

from engine.families.sd3.transformer import Sd3Config
from engine.layers.unet_shapes import Shapes, count_children

MARK = "joint_blocks.0.context_block.attn.qkv.weight"
LAST = "final_layer.linear.weight"  # a network that steers another has none
QUERY_NORM = "joint_blocks.0.context_block.attn.ln_q.weight"


def sd3_config(shapes: Shapes) -> Sd3Config:
    """Return the configuration of the network with these tensors (names without prefix)."""
    width, in_channels, patch_size, _ = shapes["x_embedder.proj.weight"]
    num_blocks = count_children(shapes, "joint_blocks")
    return Sd3Config(
        num_blocks=num_blocks,
        width=width,
        context_dim=shapes["context_embedder.weight"][1],
        label_dim=shapes["y_embedder.mlp.0.weight"][1],
        in_channels=in_channels,
        out_channels=shapes.get(LAST, (in_channels * patch_size**2,))[0] // patch_size**2,
        patch_size=patch_size,
        position_side=math.isqrt(shapes["pos_embed"][1]) if "pos_embed" in shapes else 0,
        norms_queries=QUERY_NORM in shapes,
        dual_blocks=frozenset(
            index for index in range(num_blocks) if f"joint_blocks.{index}.x_block.attn2.qkv.weight" in shapes
        ),
        num_text_layers=count_children(shapes, "context_processor.layers"),
    )
