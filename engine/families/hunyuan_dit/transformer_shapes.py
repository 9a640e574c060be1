"""The configuration of a HunyuanDiT transformer, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from engine.families.hunyuan_dit.transformer import HunyuanDitConfig
from engine.layers.patches import PATCH
from engine.layers.unet_shapes import Shapes, count_children

MARK = "mlp_t5.0.weight"
FIRST = "x_embedder.proj.weight"
STYLE = "style_embedder.weight"
NUM_SECOND = "pooler.positional_embedding"
HEAD = "blocks.0.attn1.q_norm.weight"


def hunyuan_dit_config(shapes: Shapes) -> HunyuanDitConfig:
    """Return the configuration of the network with these tensors (names without prefix).

    Raises LookupError for a missing tensor.
    """
    width, in_channels = shapes[FIRST][:2]
    num_tokens, context_dim = shapes["text_embedding_padding"]
    num_second = shapes[NUM_SECOND][0] - 1
    last = shapes.get("final_layer.linear.weight", (PATCH * PATCH * 2 * in_channels,))[0]
    return HunyuanDitConfig(
        width=width,
        num_blocks=count_children(shapes, "blocks"),
        heads=width // shapes[HEAD][0],
        inner_width=shapes["blocks.0.mlp.fc1.weight"][0],
        context_dim=context_dim,
        second_dim=shapes[MARK][1],
        pooled_dim=shapes["pooler.c_proj.weight"][0],
        num_first=num_tokens - num_second,
        num_second=num_second,
        in_channels=in_channels,
        out_channels=last // PATCH**2,
        has_sizes=STYLE in shapes,
    )
