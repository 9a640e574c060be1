"""The configuration of a Chroma Radiance transformer, read from the shapes of its tensors. Pure."""

from __future__ import annotations

import math

from engine.families.chroma_radiance.transformer import NUMBERS_TEXT, PREDICTS_PICTURE, ChromaRadianceConfig
from engine.layers.unet_shapes import Shapes, count_children

MARK = "nerf_blocks.0.norm.scale"
CONV_HEAD = "nerf_final_layer_conv.norm.scale"


def chroma_radiance_config(shapes: Shapes) -> ChromaRadianceConfig:
    """Return the configuration of the network with these tensors (names without prefix).

    Raises LookupError for a missing tensor.
    """
    width, context_dim = shapes["txt_in.weight"]
    pixel_width, embedded_width = shapes["nerf_image_embedder.embedder.0.weight"]
    channels = shapes["img_in_patch.weight"][1]
    return ChromaRadianceConfig(
        width=width,
        num_double=count_children(shapes, "double_blocks"),
        num_single=count_children(shapes, "single_blocks"),
        context_dim=context_dim,
        approximator_width=shapes["distilled_guidance_layer.in_proj.weight"][0],
        approximator_layers=count_children(shapes, "distilled_guidance_layer.layers"),
        in_channels=channels,
        out_channels=channels,
        inner_factor=shapes["double_blocks.0.img_mlp.0.weight"][0] // width,
        pixel_width=pixel_width,
        num_pixel_layers=count_children(shapes, "nerf_blocks"),
        pixel_factor=shapes["nerf_blocks.0.param_generator.weight"][0] // (3 * pixel_width**2),
        num_frequencies=math.isqrt(embedded_width - channels),
        has_conv_head=CONV_HEAD in shapes,
        predicts_picture=PREDICTS_PICTURE in shapes,
        numbers_text=NUMBERS_TEXT in shapes,
    )
