"""Qwen3-VL as a text encoder of a family, which reads images too: its files, in ComfyUI's layout and in Alibaba's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from darkroom.engine.families.base import Network, Shapes, TextEncoder, TokenizerParts
from darkroom.engine.families.layouts import behind_first, names_behind, saved_behind
from darkroom.engine.families.text.t5 import lora_keys
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.layers.language_model import EMBEDDING, QWEN3_VL, LanguageModelConfig
from darkroom.engine.layers.qwen3_vl_vision import MARK as VISION_MARK
from darkroom.engine.layers.qwen3_vl_vision import Qwen3VlVisionConfig
from darkroom.engine.layers.vision_language_model import (
    VISION_PREFIX,
    VisionLanguageModel,
    VisionLanguageModelConfig,
    vision_language_model_config,
)
from darkroom.engine.text.language_tokens import qwen3
from darkroom.engine.text.qwen_encoding import QwenEncoder, QwenEncoding
from darkroom.engine.text.qwen_tokens import QwenTokenizer

PUBLISHED = {"model.language_model.": "model.", "model.visual.": VISION_PREFIX}  # prefixes of published files -> ours
NUM_LAYERS = 36


def qwen3_vl(
    encoding: QwenEncoding,
    *,
    other_widths: tuple[int, ...],
    encoder_type: Callable[[Any, Any], Any],
    tokenizer_type: Callable[..., QwenTokenizer],
    sizes: Mapping[str, VisionLanguageModelConfig],
) -> TextEncoder:
    """Describe the encoder of a family; models of `other_widths` are those that other networks read.

    `tokenizer_type` makes the tokenizer of its prompts, from the parameters of a `QwenTokenizer`.
    """
    slot = encoding.slot
    prefix = f"text_encoders.{slot}.transformer."
    return TextEncoder(
        encoding=encoding,
        network=Network(
            layouts=(
                behind_first((prefix, f"{slot}.transformer.", "transformer.", ""), EMBEDDING),
                published_layout,
            ),
            in_checkpoint=(behind_first((prefix,), EMBEDDING),),
            configure=vision_language_model_config,
            build=VisionLanguageModel,
            saved=partial(saved_behind, prefix),
            sizes=sizes,
        ),
        fits=partial(fits, other_widths=other_widths),
        lora_keys=partial(lora_keys, key=slot, numbers=()),
        encoder_type=encoder_type,
        tokenizer=partial(_tokenizer, tokenizer_type=tokenizer_type),
    )


def _tokenizer(
    encoder: QwenEncoder, parts: TokenizerParts, *, tokenizer_type: Callable[..., QwenTokenizer]
) -> QwenTokenizer:
    encoding = encoder.encoding
    return tokenizer_type(
        slot=encoding.slot, template=encoding.template, image_template=encoding.image_template, vocabulary=qwen3
    )


def fits(shapes: Shapes, *, other_widths: tuple[int, ...]) -> bool:
    """Return True for Qwen3-VL of a width that no other network reads, with as many layers as the smaller models."""
    is_larger = f"model.layers.{NUM_LAYERS}.self_attn.q_proj.weight" in shapes
    return VISION_PREFIX + VISION_MARK in shapes and shapes[EMBEDDING][1] not in other_widths and not is_larger


def qwen3_vl_config(
    *,
    width: int,
    heads: int,
    key_heads: int,
    inner_width: int,
    vision: Qwen3VlVisionConfig,
    num_layers: int = NUM_LAYERS,
) -> VisionLanguageModelConfig:
    """Return the configuration of a model with the vocabulary, and as many layers, as those published have."""
    language = LanguageModelConfig(
        kind=QWEN3_VL, num_layers=num_layers, width=width, heads=heads, key_heads=key_heads, inner_width=inner_width,
        vocabulary_size=151936, norms_queries=True,
    )  # fmt: skip
    return VisionLanguageModelConfig(language, vision)


SIZES_4B = {
    "full": qwen3_vl_config(
        width=2560, heads=32, key_heads=8, inner_width=9728,
        vision=Qwen3VlVisionConfig(width=1024, inner_width=4096, num_blocks=24, out_width=2560),
    ),
    "small": qwen3_vl_config(
        width=32, heads=1, key_heads=1, inner_width=64,
        vision=Qwen3VlVisionConfig(width=64, inner_width=128, num_blocks=24, out_width=32, table_side=8),
    ),
}  # fmt: skip
"""Configurations of the model of 4 billion weights, by the name of the size."""


def published_layout(shapes: Shapes) -> Names | None:
    """Return the names of a file in the layout in which Alibaba publishes the model, else None."""
    if not all(any(name.startswith(prefix) for name in shapes) for prefix in PUBLISHED):
        return None
    found = {(theirs, ours): names_behind(shapes, theirs) for theirs, ours in PUBLISHED.items()}
    return {ours + name: theirs for (_, ours), names in found.items() for name, theirs in names.items()}


QWEN3_VL_8B_WIDTH = 4096
QWEN3_VL_8B: Mapping[str, VisionLanguageModelConfig] = {
    "full": qwen3_vl_config(
        width=QWEN3_VL_8B_WIDTH, heads=32, key_heads=8, inner_width=12288,
        vision=Qwen3VlVisionConfig(width=1152, inner_width=4304, num_blocks=27, out_width=QWEN3_VL_8B_WIDTH),
    ),
    "small": qwen3_vl_config(
        width=64, heads=1, key_heads=1, inner_width=128,
        vision=Qwen3VlVisionConfig(width=64, inner_width=128, num_blocks=27, out_width=64, table_side=8),
    ),
}  # fmt: skip
"""Sizes of the model of 8 billion weights, for the families that read it."""
