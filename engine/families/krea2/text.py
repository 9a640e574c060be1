"""The text encoder of Krea 2: Qwen3-VL 4B, of which twelve layers are read. It reads images too."""

from __future__ import annotations

from functools import partial

from darkroom.engine.families.text.qwen3_vl import SIZES_4B, qwen3_vl
from darkroom.engine.families.text.qwen25_vl import ANSWER, DESCRIBE, SYSTEM
from darkroom.engine.text.qwen_encoding import QwenEncoding, TappedQwenEncoder
from darkroom.engine.text.qwen_tokens import IMAGE_PLACEHOLDER, QwenTokenizer

SLOT = "qwen3vl_4b"
WIDTH = 2560
OTHER_WIDTHS = (2048, 4096, 5120)  # of Qwen3-VL models that other networks read
LAYERS = (2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35)  # those whose inputs are read
IMAGE_TEMPLATE = "<|im_start|>user\n" + IMAGE_PLACEHOLDER + ANSWER


QWEN = qwen3_vl(
    QwenEncoding(SLOT, SYSTEM.format(DESCRIBE) + ANSWER, IMAGE_TEMPLATE, WIDTH, writes_text=True),
    other_widths=OTHER_WIDTHS,
    encoder_type=partial(TappedQwenEncoder, layers=LAYERS),
    tokenizer_type=partial(QwenTokenizer, repeats_images=True),
    sizes=SIZES_4B,
)
