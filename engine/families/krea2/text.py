"""The text encoder of Krea 2: Qwen3-VL 4B, of which twelve layers are read. It reads pictures too."""

from __future__ import annotations

from functools import partial

from engine.families.base import Network, Shapes, TextEncoder, TokenizerParts
from engine.families.layouts import behind_first, saved_behind
from engine.families.text.qwen3_vl_layout import published_layout
from engine.families.text.qwen25_vl import ANSWER, DESCRIBE, SYSTEM
from engine.families.text.t5 import lora_keys
from engine.layers.language_model import EMBEDDING
from engine.layers.qwen3_vl_vision import MARK as VISION_MARK
from engine.layers.vision_language_model import VISION_PREFIX, VisionLanguageModel, vision_language_model_config
from engine.text.language_tokens import qwen3
from engine.text.qwen_encoding import QwenEncoding, TappedQwenEncoder
from engine.text.qwen_tokens import IMAGE_PLACEHOLDER, QwenTokenizer

SLOT = "qwen3vl_4b"
WIDTH = 2560
OTHER_WIDTHS = (2048, 4096, 5120)  # of Qwen3-VL models that other networks read
LAYERS = (2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35)  # those whose inputs are read
PREFIX = f"text_encoders.{SLOT}.transformer."
PREFIXES = (PREFIX, f"{SLOT}.transformer.", "transformer.", "")  # of files of the encoder alone
PICTURE_TEMPLATE = "<|im_start|>user\n" + IMAGE_PLACEHOLDER + ANSWER


def fits(shapes: Shapes) -> bool:
    """Return True for Qwen3-VL of a width that no other network reads."""
    return VISION_PREFIX + VISION_MARK in shapes and shapes[EMBEDDING][1] not in OTHER_WIDTHS


def _tokenizer(encoder: TappedQwenEncoder, parts: TokenizerParts) -> QwenTokenizer:
    encoding = encoder.encoding
    return QwenTokenizer(
        slot=encoding.slot, template=encoding.template, picture_template=encoding.picture_template,
        vocabulary=qwen3, repeats_pictures=True,
    )  # fmt: skip


QWEN = TextEncoder(
    encoding=QwenEncoding(SLOT, SYSTEM.format(DESCRIBE) + ANSWER, PICTURE_TEMPLATE, WIDTH, writes_text=True),
    network=Network(
        layouts=(behind_first(PREFIXES, EMBEDDING), published_layout),
        in_checkpoint=(behind_first((PREFIX,), EMBEDDING),),
        configure=vision_language_model_config,
        build=VisionLanguageModel,
        saved=partial(saved_behind, PREFIX),
    ),
    fits=fits,
    lora_keys=partial(lora_keys, key=SLOT, numbers=()),
    encoder_type=partial(TappedQwenEncoder, layers=LAYERS),
    tokenizer=_tokenizer,
)
