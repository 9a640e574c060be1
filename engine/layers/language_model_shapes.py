"""The configuration of a language model, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from engine.layers.language_model import GEMMA2, GEMMA3, LLAMA3, QWEN2, QWEN3, LanguageModelConfig, LanguageModelKind
from engine.layers.unet_shapes import Shapes, count_children

EMBEDDING = "model.embed_tokens.weight"
FIRST = "model.layers.0."
QUERIES, KEYS = f"{FIRST}self_attn.q_proj.weight", f"{FIRST}self_attn.k_proj.weight"
QUERY_NORM, QUERY_BIAS = f"{FIRST}self_attn.q_norm.weight", f"{FIRST}self_attn.q_proj.bias"
OUTPUT_NORM = f"{FIRST}post_feedforward_layernorm.weight"


def kind_of(shapes: Shapes) -> LanguageModelKind:
    """Return the kind of the model with these tensors, by its norms and biases.

    Raises:
        KeyError: the tensors are no language model's.
    """
    if QUERIES not in shapes:
        raise KeyError(QUERIES)
    if OUTPUT_NORM in shapes:
        return GEMMA3 if QUERY_NORM in shapes else GEMMA2
    if QUERY_NORM in shapes:
        return QWEN3
    return QWEN2 if QUERY_BIAS in shapes else LLAMA3


def language_model_config(shapes: Shapes, kind: LanguageModelKind | None = None) -> LanguageModelConfig:
    """Return the configuration of the model with these tensors (names from `model.` on); None is the kind they show."""
    num_tokens, width = shapes[EMBEDDING]
    kind = kind or kind_of(shapes)
    return LanguageModelConfig(
        kind=kind,
        num_layers=count_children(shapes, "model.layers"),
        width=width,
        heads=shapes[QUERIES][0] // kind.head_width,
        key_heads=shapes[KEYS][0] // kind.head_width,
        inner_width=shapes[f"{FIRST}mlp.gate_proj.weight"][0],
        vocabulary_size=num_tokens,
        has_biases=QUERY_BIAS in shapes,
        norms_queries=QUERY_NORM in shapes,
        norms_outputs=OUTPUT_NORM in shapes,
    )
