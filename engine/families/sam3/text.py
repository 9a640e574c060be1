"""The text encoder of SAM 3: a CLIP of 24 layers and 32 tokens, in OpenCLIP's layout within checkpoints."""

from __future__ import annotations

from functools import partial

from darkroom.engine.families.base import Layout, Shapes, TextEncoder, TokenizerParts
from darkroom.engine.families.text.clip_text import (
    PROJECTION,
    clip_text_network,
    lora_keys,
    open_clip_layout,
    saved_as_open_clip,
)
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.layers.clip_text import ClipTextConfig
from darkroom.engine.text.sam3 import NUM_TOKENS, Sam3Encoding, Sam3TextEncoder, Sam3Tokenizer

PREFIX = "detector.backbone.language_backbone.encoder."
PADDING = 0
ENCODING = Sam3Encoding(slot="l", embedding_width=1024, pad_token=PADDING, projects_pooled=False, masks_padding=True)


def without_projection(layout: Layout) -> Layout:
    """Make a layout without the pooled output's projection, which is not square and which nothing reads."""

    def found(shapes: Shapes) -> Names | None:
        names = layout(shapes)
        return None if names is None else {name: item for name, item in names.items() if name != PROJECTION}

    return found


def tokenizer(encoder: Sam3TextEncoder, parts: TokenizerParts) -> Sam3Tokenizer:
    """Make the tokenizer of the encoder."""
    encoding = encoder.encoding
    find = parts.find_embedding(encoding)
    return Sam3Tokenizer(find, slot=encoding.slot, pad_token=encoding.pad_token, pairs=parts.pairs)


LAYOUT = without_projection(open_clip_layout((PREFIX,)))

SAM3_CLIP = TextEncoder(
    encoding=ENCODING,
    network=clip_text_network(
        layouts=(LAYOUT,),
        in_checkpoint=(LAYOUT,),
        saved=partial(saved_as_open_clip, PREFIX),
        activation="quick_gelu",
        sizes={
            "full": ClipTextConfig(num_layers=24, width=1024, heads=16, inner_width=4096, num_positions=NUM_TOKENS),
            "small": ClipTextConfig(num_layers=2, width=64, heads=1, inner_width=128, num_positions=NUM_TOKENS),
        },
    ),
    fits=lambda shapes: False,  # no file has it alone
    lora_keys=partial(lora_keys, key=ENCODING.key),
    encoder_type=Sam3TextEncoder,
    tokenizer=tokenizer,
)
