"""The configuration of PixelDiT, and its reading from the shapes of tensors."""

from __future__ import annotations

from dataclasses import dataclass

from darkroom.engine.layers.shapes import Shapes, count_children

PATCH_PX = 16
MARK = "pixel_embedder.proj.weight"
FIRST_BLOCK = "patch_blocks.0.attn."


@dataclass(frozen=True, slots=True)
class PixelDiTConfig:
    """Configuration of the network, whose patches have 16 pixels a side.

    `context_dim` is the width of a text's tokens, of which the first `max_text_tokens` are read. `pixel_size`,
    `pixel_attention_size` and `pixel_head_dim` are the channels of a pixel, and those of the attention between patches
    in blocks of pixels and of one of its heads.
    """

    hidden_size: int = 1536
    head_dim: int = 64
    intermediate_size: int = 4096
    num_layers: int = 14
    context_dim: int = 2304
    max_text_tokens: int = 300
    in_channels: int = 3
    pixel_size: int = 16
    pixel_attention_size: int = 1152
    pixel_head_dim: int = 72
    num_pixel_layers: int = 2


def pixeldit_config(shapes: Shapes) -> PixelDiTConfig:
    """Return the configuration of the network with these tensors (names without prefix).

    Raises LookupError, and ValueError for tensors of other dimensions.
    """
    pixel_size, in_channels = shapes[MARK]
    hidden_size, context_dim = shapes["y_embedder.proj.weight"]
    (head_dim,) = shapes[f"{FIRST_BLOCK}q_norm_x.weight"]
    (pixel_head_dim,) = shapes["pixel_blocks.0.attn.q_norm.weight"]
    _, max_text_tokens, _ = shapes["y_pos_embedding"]
    return PixelDiTConfig(
        hidden_size=hidden_size,
        head_dim=head_dim,
        intermediate_size=shapes["patch_blocks.0.mlp_x.w1.weight"][0],
        num_layers=count_children(shapes, "patch_blocks"),
        context_dim=context_dim,
        max_text_tokens=max_text_tokens,
        in_channels=in_channels,
        pixel_size=pixel_size,
        pixel_attention_size=shapes["pixel_blocks.0.compress_to_attn.weight"][0],
        pixel_head_dim=pixel_head_dim,
        num_pixel_layers=count_children(shapes, "pixel_blocks"),
    )
