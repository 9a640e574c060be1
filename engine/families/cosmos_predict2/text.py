"""The text encoder of both Cosmos families: the largest of the first T5, 512 tokens, padding zeroed."""

from __future__ import annotations

from darkroom.engine.families.text.t5 import first_t5
from darkroom.engine.layers.t5 import T5Config
from darkroom.engine.text.t5_encoding import T5Encoding

CONTEXT_DIM = 1024
TEXT = first_t5(
    T5Encoding(embedding_width=CONTEXT_DIM, min_length=512, masks_padding=True, zeroes_padding=True, returns_mask=True),
    sizes={
        "full": T5Config(
            num_layers=24, width=CONTEXT_DIM, heads=128, inner_width=65536, is_gated=False, head_width=128
        ),
        "small": T5Config(num_layers=2, width=64, heads=2, inner_width=128, is_gated=False),
    },
)
