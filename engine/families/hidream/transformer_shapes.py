"""The configuration of a transformer with experts, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from engine.families.hidream.transformer import HiDreamConfig
from engine.layers.patches import PATCH
from engine.layers.unet_shapes import Shapes, count_children

MARK = "caption_projection.0.linear.weight"
FIRST = "double_stream_blocks.0.block."


def hidream_config(shapes: Shapes) -> HiDreamConfig:
    """Return the configuration of the network with these tensors (names without prefix)."""
    width, language_dim = shapes[MARK]
    num_double, num_single = (count_children(shapes, f"{name}_stream_blocks") for name in ("double", "single"))
    num_experts = count_children(shapes, f"{FIRST}ff_i.experts")
    expert = f"{FIRST}ff_i.experts.0" if num_experts else f"{FIRST}ff_i"
    return HiDreamConfig(
        width=width,
        num_double=num_double,
        num_single=num_single,
        text_dim=shapes[f"caption_projection.{num_double + num_single}.linear.weight"][1],
        language_dim=language_dim,
        label_dim=shapes["p_embedder.pooled_embedder.linear_1.weight"][1],
        expert_width=shapes[f"{expert}.w1.weight"][0],
        shared_width=shapes[f"{FIRST}ff_i.shared_experts.w1.weight"][0] if num_experts else 0,
        text_width=shapes[f"{FIRST}ff_t.w1.weight"][0],
        num_experts=num_experts,
        in_channels=shapes["x_embedder.proj.weight"][1] // PATCH**2,
        out_channels=shapes["final_layer.linear.weight"][0] // PATCH**2,
    )
