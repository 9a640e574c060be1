"""The configuration of an AuraFlow transformer, read from the shapes of its tensors. Pure."""

from __future__ import annotations

import math

from engine.families.aura_flow.transformer import AuraFlowConfig
from engine.layers.patches import PATCH
from engine.layers.unet_shapes import Shapes, count_children

MARK = "cond_seq_linear.weight"
FEED_FORWARD = ("double_layers.0.mlpX.c_fc1.weight", "single_layers.0.mlp.c_fc1.weight")


def aura_flow_config(shapes: Shapes) -> AuraFlowConfig:
    """Return the configuration of the network with these tensors (names without prefix).

    Raises LookupError for a missing tensor.
    """
    width, context_dim = shapes[MARK]
    feed_forward = next((name for name in FEED_FORWARD if name in shapes), FEED_FORWARD[0])
    return AuraFlowConfig(
        width=width,
        num_double=count_children(shapes, "double_layers"),
        num_single=count_children(shapes, "single_layers"),
        context_dim=context_dim,
        time_dim=shapes["t_embedder.mlp.0.weight"][0],
        inner_width=shapes[feed_forward][0],
        position_side=math.isqrt(shapes["positional_encoding"][1]),
        num_registers=shapes["register_tokens"][1],
        in_channels=shapes["init_x_linear.weight"][1] // PATCH**2,
        out_channels=shapes["final_linear.weight"][0] // PATCH**2,
    )
