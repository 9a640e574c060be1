"""CLIP ViT-L beside other text encoders of a family: its files, and its names in LoRA files."""

from __future__ import annotations

from functools import partial

from darkroom.engine.adapters.lora_names import clip_text_keys
from darkroom.engine.families.base import Shapes, TextEncoder
from darkroom.engine.families.layouts import saved_behind
from darkroom.engine.families.text.clip_text import clip_text_network, num_layers, transformers_layout
from darkroom.engine.layers.clip_text import ClipTextConfig
from darkroom.engine.text.clip_encoding import ClipEncoding

PREFIX = "text_encoders.clip_l.transformer."
PREFIXES = (PREFIX, "clip_l.transformer.", "transformer.", "")  # of files of the encoder alone
MOST_LAYERS = 22  # encoders of more are others
SIZES = {
    "full": ClipTextConfig(num_layers=12, width=768, heads=12, inner_width=3072),
    "small": ClipTextConfig(num_layers=2, width=64, heads=1, inner_width=128),
}


def fits(shapes: Shapes) -> bool:
    """Return True for an encoder of at most 22 layers, as in ComfyUI."""
    return 0 < num_layers(shapes) <= MOST_LAYERS


def clip_l(encoding: ClipEncoding) -> TextEncoder:
    """Describe the encoder of a family whose checkpoints have it behind `text_encoders.`."""
    return TextEncoder(
        encoding=encoding,
        network=clip_text_network(
            layouts=(transformers_layout(PREFIXES),),
            in_checkpoint=(transformers_layout((PREFIX,)),),
            saved=partial(saved_behind, PREFIX),
            activation="quick_gelu",
            sizes=SIZES,
        ),
        fits=fits,
        lora_keys=partial(
            clip_text_keys, encoder_prefix=f"{encoding.key}.transformer.", projection=("lora_te1_text_projection",)
        ),
    )
