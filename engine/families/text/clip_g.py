"""OpenCLIP ViT-bigG as a text encoder of a family: its files, and its names in LoRA files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from darkroom.engine.adapters.lora_names import clip_text_keys
from darkroom.engine.families.base import Shapes, TextEncoder
from darkroom.engine.families.layouts import saved_behind
from darkroom.engine.families.text.clip_text import (
    clip_text_network,
    num_layers,
    open_clip_layout,
    saved_as_open_clip,
    transformers_layout,
)
from darkroom.engine.layers.clip_text import ClipTextConfig
from darkroom.engine.text.clip_g import CLIP_G_ENCODING

ALONE = ("clip_g.transformer.", "transformer.", "")
FEWEST_LAYERS = 31  # encoders of fewer are others
SIZES = {
    "full": ClipTextConfig(num_layers=32, width=1280, heads=20, inner_width=5120, activation="gelu"),
    "small": ClipTextConfig(num_layers=32, width=64, heads=1, inner_width=128, activation="gelu"),
}


def fits(shapes: Shapes) -> bool:
    """Return True for an encoder of at least 31 layers, as in ComfyUI."""
    return num_layers(shapes) >= FEWEST_LAYERS


def clip_g(prefix: str, lora_keys: Callable[[Iterable[str]], dict[str, str]]) -> TextEncoder:
    """Describe the encoder of a family whose checkpoints have it in OpenCLIP's layout behind `prefix`."""
    return TextEncoder(
        encoding=CLIP_G_ENCODING,
        network=clip_text_network(
            layouts=(open_clip_layout((prefix, "")), transformers_layout(ALONE)),
            in_checkpoint=(open_clip_layout((prefix,)),),
            saved=partial(saved_as_open_clip, prefix),
            activation="gelu",
            sizes=SIZES,
        ),
        fits=fits,
        lora_keys=lora_keys,
    )


def second_clip_g() -> TextEncoder:
    """Describe the encoder beside CLIP ViT-L, in the layout of transformers behind `text_encoders.`."""
    prefix = f"text_encoders.{CLIP_G_ENCODING.key}.transformer."
    return TextEncoder(
        encoding=CLIP_G_ENCODING,
        network=clip_text_network(
            layouts=(open_clip_layout(("",)), transformers_layout((prefix, *ALONE))),
            in_checkpoint=(transformers_layout((prefix,)),),
            saved=partial(saved_behind, prefix),
            activation="gelu",
            sizes=SIZES,
        ),
        fits=fits,
        lora_keys=partial(
            clip_text_keys,
            encoder_prefix=f"{CLIP_G_ENCODING.key}.transformer.",
            kohya=("lora_te2_",),
            diffusers="text_encoder_2.",
            projection=("lora_prior_te_text_projection", "lora_te2_text_projection"),
        ),
    )
