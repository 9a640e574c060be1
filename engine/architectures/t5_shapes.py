"""The configuration of a T5 encoder, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from engine.architectures.latent_unet_shapes import Shapes, count_children
from engine.architectures.t5 import HEAD_WIDTH, T5Config

EMBEDDING = "shared.weight"
SECOND_BIAS = "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"


def t5_config(shapes: Shapes) -> T5Config:
    """Return the configuration of the encoder with these tensors (names from `encoder.` and `shared.` on)."""
    num_tokens, width = shapes[EMBEDDING]
    return T5Config(
        num_layers=count_children(shapes, "encoder.block"),
        width=width,
        heads=shapes["encoder.block.0.layer.0.SelfAttention.q.weight"][0] // HEAD_WIDTH,
        inner_width=shapes["encoder.block.0.layer.1.DenseReluDense.wi_0.weight"][0],
        vocabulary_size=num_tokens,
        is_biased_everywhere=SECOND_BIAS in shapes,
    )
