"""The text encoder of Stable Diffusion 1: CLIP ViT-L."""

from __future__ import annotations

from functools import partial

import torch

from darkroom.engine.families.base import Shapes, Tensors, TextEncoder
from darkroom.engine.families.layouts import saved_behind
from darkroom.engine.families.text.clip_l import SIZES
from darkroom.engine.families.text.clip_text import (
    PROJECTION,
    clip_text_network,
    early_layout,
    lora_keys,
    num_layers,
    transformers_layout,
)
from darkroom.engine.text.clip_l import CLIP_L_ENCODING

PREFIX = "cond_stage_model.transformer."
PREFIXES = (PREFIX, "clip_l.transformer.", "transformer.", "")  # of files of the encoder alone
MOST_LAYERS = 22  # encoders of more are others


def saved(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the weights under a checkpoint's names, without the projection, which such checkpoints do not have."""
    return saved_behind(PREFIX, {name: tensor for name, tensor in tensors.items() if name != PROJECTION})


def fits(shapes: Shapes) -> bool:
    """Return True for an encoder of at most 22 layers, as in ComfyUI."""
    return 0 < num_layers(shapes) <= MOST_LAYERS


CLIP_L = TextEncoder(
    encoding=CLIP_L_ENCODING,
    network=clip_text_network(
        layouts=(transformers_layout(PREFIXES), *(early_layout(prefix) for prefix in PREFIXES)),
        in_checkpoint=(transformers_layout((PREFIX,)), early_layout(PREFIX)),
        saved=saved,
        activation="quick_gelu",
        sizes=SIZES,
    ),
    fits=fits,
    lora_keys=partial(lora_keys, key=CLIP_L_ENCODING.key, projection=("lora_te1_text_projection",)),
)
