"""The configuration of a T5 encoder, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from engine.layers.t5 import T5Config
from engine.layers.unet_shapes import Shapes, count_children

EMBEDDING = "shared.weight"
ATTENTION = "encoder.block.{}.layer.0.SelfAttention."
BIAS = "relative_attention_bias.weight"  # [buckets, heads]
FEED_FORWARD = "encoder.block.0.layer.1.DenseReluDense."


def is_biased_everywhere(shapes: Shapes) -> bool:
    """Return True for an encoder with a bias in every layer, or of one layer."""
    num_layers = count_children(shapes, "encoder.block")
    return ATTENTION.format(num_layers - 1) + BIAS in shapes


def t5_config(shapes: Shapes) -> T5Config:
    """Return the configuration of the encoder with these tensors (names from `encoder.` and `shared.` on).

    Raises LookupError for a missing tensor.
    """
    num_tokens, width = shapes[EMBEDDING]
    first = ATTENTION.format(0)
    heads = shapes[first + BIAS][1]
    is_gated = FEED_FORWARD + "wi_0.weight" in shapes
    return T5Config(
        num_layers=count_children(shapes, "encoder.block"),
        width=width,
        heads=heads,
        inner_width=shapes[FEED_FORWARD + ("wi_0.weight" if is_gated else "wi.weight")][0],
        vocabulary_size=num_tokens,
        is_biased_everywhere=is_biased_everywhere(shapes),
        is_gated=is_gated,
        head_width=shapes[first + "q.weight"][0] // heads,
    )
