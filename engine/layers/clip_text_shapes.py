"""The configuration of a CLIP text encoder, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from engine.layers.clip_text import Activation, ClipTextConfig
from engine.layers.unet_shapes import Shapes, count_children

HEAD_WIDTH = 64  # of every CLIP text encoder


def clip_text_config(shapes: Shapes, *, activation: Activation = "quick_gelu") -> ClipTextConfig:
    """Return the configuration of the text encoder with these tensors (names from `text_model.` on).

    The shapes do not tell the activation function.
    """
    num_tokens, width = shapes["text_model.embeddings.token_embedding.weight"]
    return ClipTextConfig(
        num_layers=count_children(shapes, "text_model.encoder.layers"),
        width=width,
        heads=max(1, width // HEAD_WIDTH),
        inner_width=shapes["text_model.encoder.layers.0.mlp.fc1.weight"][0],
        vocabulary_size=num_tokens,
        num_positions=shapes["text_model.embeddings.position_embedding.weight"][0],
        activation=activation,
    )
