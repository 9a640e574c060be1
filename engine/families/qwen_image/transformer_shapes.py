"""The configuration of a transformer of centred double streams, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from engine.families.qwen_image.transformer import AT_ZERO, QwenImageConfig
from engine.layers.patches import PATCH
from engine.layers.unet_shapes import Shapes, count_children

MARK = "txt_norm.weight"
BLOCK = "transformer_blocks.0.img_mlp.net.0.proj.weight"
HINT = "controlnet_x_embedder.weight"
LAST = "proj_out.weight"
LAYERED = "time_text_embed.addition_t_embedding.weight"  # of networks that draw a picture in layers


def qwen_image_config(shapes: Shapes) -> QwenImageConfig:
    """Return the configuration of the network, or of a control of it, with these tensors (names without prefix)."""
    width, in_width = shapes["img_in.weight"]
    in_channels = in_width // PATCH**2
    is_control = HINT in shapes
    return QwenImageConfig(
        width=width,
        num_blocks=count_children(shapes, "transformer_blocks"),
        context_dim=shapes[MARK][0],
        in_channels=in_channels,
        out_channels=in_channels if is_control else shapes[LAST][0] // PATCH**2,
        inner_factor=shapes[BLOCK][0] // width,
        hint_channels=shapes[HINT][1] // PATCH**2 if is_control else 0,
        references_at_zero=AT_ZERO in shapes,
    )
