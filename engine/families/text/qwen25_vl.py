"""Qwen2.5-VL of 7 billion weights as a text encoder of a family, which reads images too, in a chat template."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from darkroom.engine.families.base import Network, Shapes, TextEncoder, TokenizerParts
from darkroom.engine.families.layouts import behind_first, saved_behind
from darkroom.engine.layers.language_model import QWEN2, LanguageModelConfig
from darkroom.engine.layers.qwen25_vl_vision import Qwen25VlVisionConfig
from darkroom.engine.layers.vision_language_model import (
    VisionLanguageModel,
    VisionLanguageModelConfig,
    vision_language_model_config,
)
from darkroom.engine.text.qwen_encoding import QwenEncoder, QwenEncoding
from darkroom.engine.text.qwen_tokens import IMAGE_PLACEHOLDER, QwenTokenizer

SLOT = "qwen25_7b"
PREFIX = f"text_encoders.{SLOT}.transformer."
PREFIXES = (PREFIX, f"{SLOT}.transformer.", "transformer.", "")  # of files of the encoder alone
MARK = "model.layers.0.self_attn.k_proj.bias"
KEY_ROWS = 512  # smaller models of the kind have fewer

# The templates that networks were trained with (Wu et al. 2025, arXiv 2508.02324, figures 7 and 15).
SYSTEM = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n"
QUESTION = "{}<|im_end|>"
ANSWER = QUESTION + "\n<|im_start|>assistant\n"
DESCRIBE = (
    "Describe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships of the "
    "objects and background:"
)
EDIT = (
    "Describe the key features of the input image (color, shape, size, texture, objects, background), then explain how "
    "the user's text instruction should alter or modify the image. Generate a new image that meets the user's "
    "requirements while maintaining consistency with the original input where appropriate."
)
TEMPLATE = SYSTEM.format(DESCRIBE) + ANSWER
UNANSWERED_TEMPLATE = SYSTEM.format(DESCRIBE) + QUESTION
EDIT_TEMPLATE = SYSTEM.format(EDIT) + ANSWER  # of prompts that place their images themselves
IMAGE_TEMPLATE = SYSTEM.format(EDIT) + IMAGE_PLACEHOLDER + ANSWER


def fits(shapes: Shapes) -> bool:
    """Return True for a model with as many keys as the one of 7 billion weights: ComfyUI's rule."""
    return shapes.get(MARK) == (KEY_ROWS,)


def lora_keys(weight_names: Iterable[str]) -> dict[str, str]:
    """Return a map from the names used in LoRA files to the weights of the encoder."""
    names = (name for name in weight_names if name.startswith(f"{SLOT}.") and name.endswith(".weight"))
    return {f"text_encoders.{name.removesuffix('.weight')}": name for name in names}


def _tokenizer(encoder: QwenEncoder, parts: TokenizerParts) -> QwenTokenizer:
    encoding = encoder.encoding
    return QwenTokenizer(slot=encoding.slot, template=encoding.template, image_template=encoding.image_template)


def qwen_7b(
    template: str, encoder_type: Callable[[Any, Any], Any] = QwenEncoder, *, num_small_layers: int = 2
) -> TextEncoder:
    """Describe the encoder of a family that puts prompts without images into a template.

    `num_small_layers` are the layers of the small size.
    """
    return TextEncoder(
        encoding=QwenEncoding(SLOT, template, IMAGE_TEMPLATE),
        network=Network(
            layouts=(behind_first(PREFIXES, MARK),),
            in_checkpoint=(behind_first((PREFIX,), MARK),),
            configure=vision_language_model_config,
            build=VisionLanguageModel,
            saved=partial(saved_behind, PREFIX),
            sizes={
                "full": VisionLanguageModelConfig(
                    LanguageModelConfig(
                        kind=QWEN2, num_layers=28, width=3584, heads=28, key_heads=4, inner_width=18944,
                        vocabulary_size=152064, has_biases=True,
                    ),
                    Qwen25VlVisionConfig(width=1280, inner_width=3420, num_blocks=32, out_width=3584),
                ),
                "small": VisionLanguageModelConfig(
                    LanguageModelConfig(
                        kind=QWEN2, num_layers=num_small_layers, width=32, heads=4, key_heads=4, inner_width=64,
                        vocabulary_size=152064, has_biases=True,
                    ),
                    Qwen25VlVisionConfig(width=80, inner_width=64, num_blocks=8, out_width=32),
                ),
            },
        ),
        fits=fits,
        lora_keys=lora_keys,
        encoder_type=encoder_type,
        tokenizer=_tokenizer,
    )  # fmt: skip
