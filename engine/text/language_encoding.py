"""Encoding of prompts with weights, given as chunks of tokens, to conditioning by a language model.

`B` chunks, `T` tokens, `D` width.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from engine.text.clip_encoding import NO_OPTIONS, Encoded, TokenWeights

log = logging.getLogger(__name__)


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


class LanguageEncoder(nn.Module):
    """An encoder of chunks of tokens. `transformer` is `engine/architectures/language_model.py::LanguageModel`.

    `vocabulary` is the serialised tokenizer of its file, None where it has none.
    """

    def __init__(self, transformer: Any, encoding: LanguageEncoding) -> None:
        super().__init__()
        self.config = transformer.config
        self.num_layers: int = transformer.num_layers
        self.encoding = encoding
        self.transformer = transformer
        self.vocabulary: bytes | None = None

    def encode(
        self, chunks: Sequence[Sequence[int | torch.Tensor]], layer_idx: int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the conditioning [B, T, D], float32, and the mask of tokens [B, T] (1 up to the padding, else 0).

        A layer beyond the first means the whole network.
        """
        embedded = [self._embed(chunk) for chunk in chunks]
        embeds = torch.stack([rows for rows, _ in embedded])
        mask = torch.tensor([seen for _, seen in embedded], device=embeds.device)
        return self._states(embeds, mask, layer_idx).float(), mask

    def _states(self, embeds: torch.Tensor, mask: torch.Tensor, layer_idx: int | None) -> torch.Tensor:
        """Return the output of the network, or of its layer, for these rows [B, T, D]."""
        layer = self.encoding.layer if layer_idx is None else layer_idx
        is_whole = layer is None or abs(layer) > self.num_layers
        out: torch.Tensor = self.transformer.model(embeds, mask, None if is_whole else layer)
        return out

    def encode_token_weights(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return the conditioning [1, T * chunks, D]; a language model has no pooled output.

        A token of weight w moves along the line from the empty prompt's output at its place: empty + w * (its own -
        empty).
        """
        tokens = [[token for token, _ in chunk] for chunk in chunks]
        weighted = not chunks or any(weight != 1.0 for chunk in chunks for _, weight in chunk)
        if weighted:
            tokens = [*tokens, self._empty(max((len(chunk) for chunk in tokens), default=0))]
        cond, mask = self.encode(tokens, layer_idx)
        options = {"attention_mask": mask[: len(chunks)].reshape(1, -1)} if self.encoding.returns_mask else NO_OPTIONS
        if not chunks:
            return Encoded(cond[-1:], None, options)
        if weighted:
            weights = torch.tensor([[weight for _, weight in chunk] for chunk in chunks], device=cond.device)
            cond = self._weighted(cond[: len(chunks)], cond[-1], weights)
        return Encoded(torch.cat(list(cond[:, None]), dim=-2), None, options)

    def _weighted(self, cond: torch.Tensor, empty: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the conditioning [B, T, D] with the weights [B, T] of its tokens."""
        factors = weights.unsqueeze(-1)
        return torch.where(factors != 1.0, (cond - empty) * factors + empty, cond)

    def _empty(self, length: int) -> list[int]:
        """Return the tokens of an empty prompt of that length, at least the start token where there is one."""
        start = [] if self.encoding.start_token is None else [self.encoding.start_token]
        return [*start, *[self.encoding.pad_token] * (length - len(start))]

    def _embed(self, chunk: Sequence[int | torch.Tensor]) -> tuple[torch.Tensor, list[int]]:
        """Return the rows [T, D] of a chunk, and 1 for each before the padding, 0 for the others.

        Embeddings stand for themselves, padding for those of another width.
        """
        table = self.transformer.get_input_embeddings()
        width = table.embedding_dim
        pad = self.encoding.pad_token
        numbers = [pad, *(int(token) for token in chunk if not isinstance(token, torch.Tensor))]
        pad_row, *looked_up = table(torch.tensor(numbers, device=table.weight.device)).unsqueeze(1)  # each [1, D]
        rows: list[torch.Tensor] = []
        mask: list[int] = []
        has_ended, left_out = False, 0
        for token in chunk:
            if not isinstance(token, torch.Tensor):
                has_ended = has_ended or int(token) == pad
                rows.append(looked_up.pop(0))
                mask.append(int(not has_ended))
            elif token.shape[-1] == width:
                rows.append(token.reshape(-1, width).to(pad_row))
                mask.extend([1] * rows[-1].shape[0])
            else:
                left_out += max(1, token.numel() // token.shape[-1])
        if left_out:
            log.warning("an embedding is not of the text encoder's width %d and is ignored", width)
            rows.append(pad_row.expand(left_out, -1))
            mask.extend([0] * left_out)
        return torch.cat(rows), mask
