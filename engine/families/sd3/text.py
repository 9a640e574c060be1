"""The text encoders of Stable Diffusion 3: CLIP ViT-L beside OpenCLIP ViT-bigG, followed by T5-XXL.

Each may be left out. `T` tokens, `D` width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch.nn import functional

from darkroom.engine.families.text.clip_g import second_clip_g
from darkroom.engine.families.text.clip_l import clip_l
from darkroom.engine.families.text.t5 import t5_xxl
from darkroom.engine.text.chunk_encoding import Encoded, TokenWeights
from darkroom.engine.text.clip_encoding import ClipEncoder
from darkroom.engine.text.clip_l import CLIP_L_ENCODING
from darkroom.engine.text.t5_encoding import T5Encoding

L_WIDTH, G_WIDTH, CONTEXT_DIM = 768, 1280, 4096
NUM_EMPTY = 77  # tokens of zeros, where no encoder reads anything
T5_SLOT = "t5xxl"


class OptionalClipEncoder(ClipEncoder):
    """An encoder that gives no tokens, and zeros as the pooled output, for a prompt that was left out."""

    def encode_weighted(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        if chunks:
            return super().encode_weighted(chunks, layer_idx=layer_idx, project_pooled=project_pooled)
        zeros = torch.zeros(1, self.config.width, device=self.transformer.get_input_embeddings().weight.device)
        return Encoded(zeros[:, None][:, :0], zeros)


def stacked(encoded: Mapping[str, Encoded]) -> Encoded:
    """Return the tokens of both CLIPs side by side, then those of T5 [1, T, D], and both pooled outputs.

    Of the CLIPs as many tokens count as the shorter one has. They are filled up with zeros to the width of T5, as are
    the places of encoders that are left out.
    """
    t5 = encoded[T5_SLOT].cond if T5_SLOT in encoded else None
    width = CONTEXT_DIM if t5 is None else t5.shape[-1]
    first = next(iter(encoded.values())).cond
    pooled = torch.cat([_pooled(encoded, "l", L_WIDTH, first), _pooled(encoded, "g", G_WIDTH, first)], dim=-1)
    parts = [part for part in (_clip_tokens(encoded, width), t5) if part is not None and part.shape[1]]
    return Encoded(torch.cat(parts, dim=1) if parts else first.new_zeros(1, NUM_EMPTY, width), pooled)


def _pooled(encoded: Mapping[str, Encoded], slot: str, width: int, like: torch.Tensor) -> torch.Tensor:
    """Return the pooled output [1, width] of an encoder, zeros for one that is left out."""
    found = encoded[slot].pooled if slot in encoded else None
    return like.new_zeros(1, width) if found is None else found


def _clip_tokens(encoded: Mapping[str, Encoded], width: int) -> torch.Tensor | None:
    """Return the tokens [1, T, D] of the CLIPs in the set, None without any."""
    side_l, side_g = (encoded[slot].cond if slot in encoded else None for slot in ("l", "g"))
    if side_l is not None and side_g is not None:
        shorter = min(side_l.shape[1], side_g.shape[1])
        joined = torch.cat([side_l[:, :shorter], side_g[:, :shorter]], dim=-1)
    elif side_g is not None:
        joined = functional.pad(side_g, (L_WIDTH, 0))
    elif side_l is not None:
        joined = side_l
    else:
        return None
    return functional.pad(joined, (0, width - joined.shape[-1]))


CLIP_L = replace(clip_l(replace(CLIP_L_ENCODING, layer=-2, normalises_layer=False)), encoder_type=OptionalClipEncoder)
CLIP_G = replace(second_clip_g(), encoder_type=OptionalClipEncoder)
T5 = t5_xxl(T5Encoding(slot=T5_SLOT, min_length=77), lora_numbers=(3,))
