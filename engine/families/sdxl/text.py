"""The text encoders of Stable Diffusion XL: CLIP ViT-L and OpenCLIP ViT-bigG, side by side.

`T` tokens, `D` width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch

from darkroom.engine.adapters.lora_names import clip_text_keys
from darkroom.engine.families.base import Shapes, Tensors, TextEncoder
from darkroom.engine.families.layouts import saved_behind
from darkroom.engine.families.text.clip_g import clip_g
from darkroom.engine.families.text.clip_l import SIZES
from darkroom.engine.families.text.clip_text import PROJECTION, clip_text_network, num_layers, transformers_layout
from darkroom.engine.text.chunk_encoding import Encoded
from darkroom.engine.text.clip_l import CLIP_L_ENCODING

L_PREFIX = "conditioner.embedders.0.transformer."
G_PREFIX = "conditioner.embedders.1.model."
L_ALONE = (L_PREFIX, "clip_l.transformer.", "transformer.", "")
MOST_LAYERS_OF_L = 22  # encoders of more are others
POSITION_IDS = "text_model.embeddings.position_ids"
NUM_POSITIONS = 77


def saved_l(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the weights of CLIP ViT-L under a checkpoint's names, with the places of tokens and no projection.

    Other programs require the former, and such checkpoints do not have the latter.
    """
    kept = {name: tensor for name, tensor in tensors.items() if name != PROJECTION}
    return saved_behind(L_PREFIX, kept | {POSITION_IDS: torch.arange(NUM_POSITIONS, device="cpu").unsqueeze(0)})


def fits_l(shapes: Shapes) -> bool:
    """Return True for an encoder of at most 22 layers, as in ComfyUI."""
    return 0 < num_layers(shapes) <= MOST_LAYERS_OF_L


def side_by_side(encoded: Mapping[str, Encoded]) -> Encoded:
    """Return the tokens [1, T, D of L + D of G] of both, as many as the shorter has, and the pooled output of G."""
    tokens_l, tokens_g = encoded["l"].cond, encoded["g"].cond
    shorter = min(tokens_l.shape[1], tokens_g.shape[1])
    return Encoded(torch.cat([tokens_l[:, :shorter], tokens_g[:, :shorter]], dim=-1), encoded["g"].pooled)


ENCODING_L = replace(CLIP_L_ENCODING, layer=-2, normalises_layer=False)

CLIP_L = TextEncoder(
    encoding=ENCODING_L,
    network=clip_text_network(
        layouts=(transformers_layout(L_ALONE),),
        in_checkpoint=(transformers_layout((L_PREFIX,)),),
        saved=saved_l,
        activation="quick_gelu",
        sizes=SIZES,
    ),
    fits=fits_l,
    lora_keys=partial(
        clip_text_keys, encoder_prefix=f"{ENCODING_L.key}.transformer.", projection=("lora_te1_text_projection",)
    ),
)
CLIP_G = clip_g(
    G_PREFIX,
    partial(
        clip_text_keys,
        encoder_prefix="clip_g.transformer.",
        kohya=("lora_te2_",),
        diffusers="text_encoder_2.",
        projection=("lora_prior_te_text_projection", "lora_te2_text_projection"),
    ),
)
