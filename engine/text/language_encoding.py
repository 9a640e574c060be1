"""Encoding of prompts with weights, given as chunks of tokens, to conditioning by a language model.

`B` chunks, `T` tokens, `D` width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from darkroom.engine.text.chunk_encoding import MaskingEncoder


@dataclass(frozen=True, slots=True)
class LanguageEncoding:
    """Settings with which a model uses a language model.

    `layer` is the layer whose output, without the final norm, is the conditioning unless a node asks for another one;
    None is that of the whole network. Chunks begin with `start_token`, if there is one, and have at least `min_length`
    tokens. What follows the first padding is not seen by others. `template` surrounds prompts, `{}` stands for them.
    Without `takes_weights` brackets are text, without `takes_embeddings` names of textual inversions are, which have
    `embedding_width`. `returns_mask`: the mask of tokens is an option of the conditioning.
    """

    slot: str
    embedding_width: int
    layer: int | None = None
    start_token: int | None = None
    pad_token: int = 0
    min_length: int = 1
    template: str = "{}"
    takes_weights: bool = True
    takes_embeddings: bool = False
    returns_mask: bool = True

    @property
    def key(self) -> str:
        """ComfyUI's name of the encoder."""
        return self.slot


class LanguageEncoder(MaskingEncoder):
    """An encoder of chunks of tokens. `transformer` is `engine/layers/language_model.py::LanguageModel`."""

    encoding: LanguageEncoding

    @property
    def returns_mask(self) -> bool:
        return self.encoding.returns_mask

    def empty(self, length: int) -> list[int]:
        start = [] if self.encoding.start_token is None else [self.encoding.start_token]
        return [*start, *[self.encoding.pad_token] * (length - len(start))]

    def _num_seen(self, numbers: Sequence[int]) -> int:
        pad = self.encoding.pad_token
        return numbers.index(pad) if pad in numbers else len(numbers)

    def _states(self, embeds: torch.Tensor, mask: torch.Tensor, layer_idx: int | None) -> torch.Tensor:
        layer = self.encoding.layer if layer_idx is None else layer_idx
        is_whole = layer is None or abs(layer) > self.num_layers
        out: torch.Tensor = self.transformer.model(embeds, mask, None if is_whole else layer)
        return out
