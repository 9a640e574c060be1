"""The text encoder of Stable Diffusion 2: OpenCLIP ViT-H, in its own layout within checkpoints."""

from __future__ import annotations

from functools import partial

from darkroom.engine.families.base import Shapes, TextEncoder
from darkroom.engine.families.text.clip_text import (
    clip_text_network,
    lora_keys,
    num_layers,
    open_clip_layout,
    saved_as_open_clip,
    transformers_layout,
)
from darkroom.engine.layers.clip_text import ClipTextConfig
from darkroom.engine.text.clip_h import CLIP_H_ENCODING

PREFIX = "cond_stage_model.model."
PREFIXES = (PREFIX, "conditioner.embedders.0.model.")
ALONE = ("clip_h.transformer.", "transformer.", "")
FEWEST_LAYERS, MOST_LAYERS = 23, 30  # encoders of fewer or more are others


def fits(shapes: Shapes) -> bool:
    """Return True for an encoder of 23 to 30 layers, as in ComfyUI."""
    return FEWEST_LAYERS <= num_layers(shapes) <= MOST_LAYERS


CLIP_H = TextEncoder(
    encoding=CLIP_H_ENCODING,
    network=clip_text_network(
        layouts=(open_clip_layout((*PREFIXES, "")), transformers_layout(ALONE)),
        in_checkpoint=(open_clip_layout(PREFIXES),),
        saved=partial(saved_as_open_clip, PREFIX),
        activation="gelu",
        sizes={
            "full": ClipTextConfig(num_layers=24, width=1024, heads=16, inner_width=4096, activation="gelu"),
            "small": ClipTextConfig(num_layers=24, width=64, heads=1, inner_width=128, activation="gelu"),
        },
    ),
    fits=fits,
    lora_keys=partial(lora_keys, key=CLIP_H_ENCODING.key),
)
