"""Encoding of prompts with weights, given as chunks of tokens, to conditioning by a T5 encoder.

`B` chunks, `T` tokens, `D` width.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from engine.text.clip_encoding import Encoded, TokenWeights

PAD_TOKEN, END_TOKEN = 0, 1
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class T5Encoding:
    """Settings with which a model uses a T5 encoder.

    `min_length` is the number of tokens that shorter prompts are padded to, `embedding_width` that of the textual
    inversions made for it.
    """

    slot: str = "t5xxl"
    embedding_width: int = 4096
    min_length: int = 0

    @property
    def key(self) -> str:
        """ComfyUI's name of the encoder."""
        return self.slot


class T5Encoder(nn.Module):
    """An encoder of chunks of tokens, padding included. `transformer` is `engine/architectures/t5.py::T5Model`."""

    def __init__(self, transformer: Any, encoding: T5Encoding) -> None:
        super().__init__()
        self.config = transformer.config
        self.num_layers: int = transformer.num_layers
        self.encoding = encoding
        self.transformer = transformer

    def encode(self, chunks: Sequence[Sequence[int | torch.Tensor]], layer_idx: int | None) -> torch.Tensor:
        """Return the conditioning [B, T, D], float32. A layer beyond the first means the last one."""
        is_last = layer_idx is None or abs(layer_idx) > self.num_layers
        embeds = torch.stack([self._embed(chunk) for chunk in chunks])
        cond: torch.Tensor = self.transformer.encoder(embeds, layer=None if is_last else layer_idx)
        return cond.float()

    def encode_token_weights(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return (conditioning [1, T * chunks, D], pooled [1, 0]); T5 has no pooled output.

        A token of weight w moves along the line from the empty prompt's output at its place: empty + w * (its own -
        empty).
        """
        tokens = [[token for token, _ in chunk] for chunk in chunks]
        weighted = not chunks or any(weight != 1.0 for chunk in chunks for _, weight in chunk)
        if weighted:
            length = max((len(chunk) for chunk in tokens), default=0)
            tokens = [*tokens, [END_TOKEN, *[PAD_TOKEN] * (length - 1)]]
        cond = self.encode(tokens, layer_idx)
        pooled = cond.new_zeros((1, 0))
        if not chunks:
            return cond[-1:], pooled
        if weighted:
            empty = cond[-1]
            weights = torch.tensor([[weight for _, weight in chunk] for chunk in chunks], device=cond.device)
            weights = weights.unsqueeze(-1)
            moved = (cond[: len(chunks)] - empty) * weights + empty
            cond = torch.where(weights != 1.0, moved, cond[: len(chunks)])
        return cond.reshape(1, -1, cond.shape[-1]), pooled

    def _embed(self, chunk: Sequence[int | torch.Tensor]) -> torch.Tensor:
        """Return the rows [T, D] of a chunk. Embeddings stand for themselves, padding for those of another width."""
        table = self.transformer.get_input_embeddings()
        width = table.embedding_dim
        numbers = [PAD_TOKEN, *(int(token) for token in chunk if not isinstance(token, torch.Tensor))]
        pad_row, *looked_up = table(torch.tensor(numbers, device=table.weight.device)).unsqueeze(1)  # each [1, D]
        rows, left_out = [], 0
        for token in chunk:
            if not isinstance(token, torch.Tensor):
                rows.append(looked_up.pop(0))
            elif token.shape[-1] == width:
                rows.append(token.reshape(-1, width).to(pad_row))
            else:
                left_out += max(1, token.numel() // token.shape[-1])
        if left_out:
            log.warning("an embedding is not of the text encoder's width %d and is ignored", width)
            rows.append(pad_row.expand(left_out, -1))
        return torch.cat(rows)
