"""The configuration of a Krea 2 transformer, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from engine.families.krea2.transformer import HEAD_WIDTH, FusionConfig, Krea2Config
from engine.layers.patches import PATCH
from engine.layers.unet_shapes import Shapes, count_children

MARK = "txtfusion.projector.weight"
FUSION, BLOCK = "txtfusion.layerwise_blocks.0", "blocks.0"


def krea2_config(shapes: Shapes) -> Krea2Config:
    """Return the configuration of the network with these tensors (names without prefix)."""
    width, patch_width = shapes["first.weight"]
    text_head = shapes[f"{FUSION}.attn.qknorm.qnorm.scale"][0]
    return Krea2Config(
        width=width,
        key_heads=shapes[f"{BLOCK}.attn.wk.weight"][0] // HEAD_WIDTH,
        inner_width=shapes[f"{BLOCK}.mlp.gate.weight"][0],
        num_blocks=count_children(shapes, "blocks"),
        text=FusionConfig(
            num_layers=shapes[MARK][1],
            width=shapes[f"{FUSION}.prenorm.scale"][0],
            heads=shapes[f"{FUSION}.attn.wq.weight"][0] // text_head,
            key_heads=shapes[f"{FUSION}.attn.wk.weight"][0] // text_head,
            inner_width=shapes[f"{FUSION}.mlp.gate.weight"][0],
        ),
        in_channels=patch_width // PATCH**2,
        time_width=shapes["tmlp.0.weight"][1],
    )
