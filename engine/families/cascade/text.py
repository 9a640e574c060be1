"""The text encoder of Stable Cascade: OpenCLIP ViT-bigG, its last layer without the final norm, padding unseen."""

from __future__ import annotations

from functools import partial

import torch

from darkroom.engine.adapters.lora_names import clip_text_keys
from darkroom.engine.families.base import Shapes, Tensors, TextEncoder
from darkroom.engine.families.layouts import saved_behind
from darkroom.engine.families.text.clip_g import ALONE, SIZES, fits
from darkroom.engine.families.text.clip_text import PROJECTION, clip_text_network, open_clip_layout, transformers_layout
from darkroom.engine.formats.weight_file import Names, Transposed
from darkroom.engine.text.clip_encoding import END_TOKEN, ClipEncoding

PREFIX = "text_encoder.clip_g.transformer."
FUSED_PROJECTION = "text_encoder.clip_g.text_projection"
NUM_LAYERS = 32
ENCODING = ClipEncoding(
    slot="g", embedding_width=1280, pad_token=END_TOKEN, layer=-1, num_layers=NUM_LAYERS, normalises_layer=False,
    masks_padding=True,
)  # fmt: skip


def _in_checkpoint(shapes: Shapes) -> Names | None:
    """Return the names in a checkpoint, whose projection may be the transposed one of OpenCLIP."""
    names = transformers_layout((PREFIX,))(shapes)
    if names is None or FUSED_PROJECTION not in shapes:
        return names
    return {**names, PROJECTION: Transposed(FUSED_PROJECTION)}


def _saved(tensors: Tensors) -> dict[str, torch.Tensor]:
    return saved_behind(PREFIX, tensors)


CLIP_G = TextEncoder(
    encoding=ENCODING,
    network=clip_text_network(
        layouts=(_in_checkpoint, open_clip_layout(("",)), transformers_layout(ALONE)),
        in_checkpoint=(_in_checkpoint,),
        saved=_saved,
        activation="gelu",
        sizes=SIZES,
    ),
    fits=fits,
    lora_keys=partial(
        clip_text_keys,
        encoder_prefix="clip_g.transformer.",
        kohya=("lora_te_", "lora_prior_te_"),
        projection=("lora_prior_te_text_projection", "lora_te2_text_projection"),
    ),
)
