"""The text encoder of Krea 2: Qwen3-VL 4B, of which twelve layers are read. It reads images too."""

from __future__ import annotations

from functools import partial

from darkroom.engine.families.text.qwen3_vl import qwen3_vl, qwen3_vl_config
from darkroom.engine.families.text.qwen25_vl import ANSWER, DESCRIBE, SYSTEM
from darkroom.engine.layers.qwen3_vl_vision import Qwen3VlVisionConfig
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
    sizes={
        "full": qwen3_vl_config(
            width=WIDTH, heads=32, key_heads=8, inner_width=9728,
            vision=Qwen3VlVisionConfig(width=1024, inner_width=4096, num_blocks=24, out_width=WIDTH),
        ),
        "small": qwen3_vl_config(
            width=32, heads=1, key_heads=1, inner_width=64,
            vision=Qwen3VlVisionConfig(width=64, inner_width=128, num_blocks=24, out_width=32, table_side=8),
        ),
    },
)  # fmt: skip
