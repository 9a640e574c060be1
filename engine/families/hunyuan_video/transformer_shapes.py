"""The configuration of a HunyuanVideo or HunyuanImage transformer, read from the shapes of its tensors. Pure."""

from __future__ import annotations

import math

from engine.families.hunyuan_video.transformer import HunyuanVideoConfig
from engine.layers.unet_shapes import Shapes, count_children

MARK = "txt_in.individual_token_refiner.blocks.0.norm1.weight"
FIRST = "img_in.proj.weight"
LABELS = "vector_in.in_layer.weight"
GUIDANCE = "guidance_in.in_layer.weight"
END_TIME = "time_r_in.in_layer.weight"
GLYPHS = "byt5_in.fc1.weight"


def hunyuan_video_config(shapes: Shapes) -> HunyuanVideoConfig:
    """Return the configuration of the network with these tensors (names without prefix).

    Raises LookupError for a missing tensor.
    """
    width, in_channels, *patch = shapes[FIRST]
    glyph_inner, glyph_width = shapes.get(GLYPHS, (0, 0))
    return HunyuanVideoConfig(
        width=width,
        num_double=count_children(shapes, "double_blocks"),
        num_single=count_children(shapes, "single_blocks"),
        context_dim=shapes["txt_in.input_embedder.weight"][1],
        patch=tuple(patch),
        in_channels=in_channels,
        out_channels=shapes["final_layer.linear.weight"][0] // math.prod(patch),
        label_dim=shapes[LABELS][1] if LABELS in shapes else 0,
        has_guidance=GUIDANCE in shapes,
        glyph_width=glyph_width,
        glyph_inner=glyph_inner,
        num_refiners=count_children(shapes, "txt_in.individual_token_refiner.blocks"),
        has_end_time=END_TIME in shapes,
        inner_factor=shapes["double_blocks.0.img_mlp.0.weight"][0] // width,
    )
