"""The configuration of a Next-DiT with reference pictures, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from engine.families.omnigen2.transformer import OmniGen2Config
from engine.layers.patches import PATCH
from engine.layers.unet_shapes import Shapes, count_children

MARK = "time_caption_embed.timestep_embedder.linear_1.bias"
ATTENTION = "layers.0.attn."


def omnigen2_config(shapes: Shapes) -> OmniGen2Config:
    """Return the configuration of the network with these tensors (names without prefix)."""
    width, in_width = shapes["x_embedder.weight"]
    (head_width,) = shapes[f"{ATTENTION}norm_q.weight"]
    return OmniGen2Config(
        width=width,
        heads=shapes[f"{ATTENTION}to_q.weight"][0] // head_width,
        key_heads=shapes[f"{ATTENTION}to_k.weight"][0] // head_width,
        inner_width=shapes["layers.0.feed_forward.linear_1.weight"][0],
        num_layers=count_children(shapes, "layers"),
        context_dim=shapes["time_caption_embed.caption_embedder.1.weight"][1],
        time_width=shapes[MARK][0],
        num_refiners=count_children(shapes, "noise_refiner"),
        in_channels=in_width // PATCH**2,
        num_references=shapes["image_index_embedding"][0],
    )
