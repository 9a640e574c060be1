"""Encoding of prompts with weights, given as chunks of tokens, to conditioning by a T5 encoder.

`B` chunks, `T` tokens, `D` width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from darkroom.engine.text.chunk_encoding import MaskingEncoder

PAD_TOKEN, END_TOKEN = 0, 1


@dataclass(frozen=True, slots=True)
class T5Encoding:
    """Settings with which a model uses a T5 encoder.

    `min_length` is the number of tokens that shorter prompts are padded to, `embedding_width` that of the textual
    inversions made for it; without `takes_embeddings` their names are text. `masks_padding`: no token attends to what
    follows the end token. `zeroes_padding`: the output there is zero. `returns_mask`: the mask is an option of the
    conditioning. With `empty_has_end` the empty prompt, from which weights count, starts with the end token.
    """

    slot: str = "t5xxl"
    embedding_width: int = 4096
    min_length: int = 0
    pad_token: int = PAD_TOKEN
    end_token: int = END_TOKEN
    masks_padding: bool = False
    zeroes_padding: bool = False
    returns_mask: bool = False
    empty_has_end: bool = True
    takes_embeddings: bool = True

    @property
    def key(self) -> str:
        """ComfyUI's name of the encoder."""
        return self.slot


class T5Encoder(MaskingEncoder):
    """An encoder of chunks of tokens. `transformer` is `engine/layers/t5.py::T5Model`."""

    encoding: T5Encoding

    @property
    def returns_mask(self) -> bool:
        return self.encoding.returns_mask

    def empty(self, length: int) -> list[int]:
        start = [self.encoding.end_token] if self.encoding.empty_has_end else []
        return [*start, *[self.encoding.pad_token] * (length - len(start))]

    def _num_seen(self, numbers: Sequence[int]) -> int:
        end = self.encoding.end_token
        return numbers.index(end) + 1 if end in numbers else len(numbers)

    def _states(self, embeds: torch.Tensor, mask: torch.Tensor, layer_idx: int | None) -> torch.Tensor:
        is_last = layer_idx is None or abs(layer_idx) > self.num_layers
        out: torch.Tensor = self.transformer.encoder(
            embeds, mask if self.encoding.masks_padding else None, layer=None if is_last else layer_idx
        )
        return out.float() * mask.unsqueeze(-1) if self.encoding.zeroes_padding else out
