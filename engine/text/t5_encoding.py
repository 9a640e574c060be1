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

from engine.text.clip_encoding import NO_OPTIONS, Encoded, TokenWeights

PAD_TOKEN, END_TOKEN = 0, 1
log = logging.getLogger(__name__)


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


class T5Encoder(nn.Module):
    """An encoder of chunks of tokens, padding included. `transformer` is `engine/architectures/t5.py::T5Model`.

    `vocabulary` is the serialised tokenizer of its file, None where it has none.
    """

    def __init__(self, transformer: Any, encoding: T5Encoding) -> None:
        super().__init__()
        self.config = transformer.config
        self.num_layers: int = transformer.num_layers
        self.encoding = encoding
        self.transformer = transformer
        self.vocabulary: bytes | None = None

    def encode(
        self, chunks: Sequence[Sequence[int | torch.Tensor]], layer_idx: int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the conditioning [B, T, D], float32, and the mask of tokens [B, T] (1 up to the end token, else 0).

        A layer beyond the first means the last one.
        """
        is_last = layer_idx is None or abs(layer_idx) > self.num_layers
        embedded = [self._embed(chunk) for chunk in chunks]
        embeds = torch.stack([rows for rows, _ in embedded])
        mask = torch.tensor([seen for _, seen in embedded], device=embeds.device)
        out: torch.Tensor = self.transformer.encoder(
            embeds, mask if self.encoding.masks_padding else None, layer=None if is_last else layer_idx
        )
        cond = out.float()
        return (cond * mask.unsqueeze(-1) if self.encoding.zeroes_padding else cond), mask

    def encode_token_weights(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return the conditioning [1, T * chunks, D]; T5 has no pooled output.

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
            empty = cond[-1]
            weights = torch.tensor([[weight for _, weight in chunk] for chunk in chunks], device=cond.device)
            weights = weights.unsqueeze(-1)
            moved = (cond[: len(chunks)] - empty) * weights + empty
            cond = torch.where(weights != 1.0, moved, cond[: len(chunks)])
        return Encoded(cond.reshape(1, -1, cond.shape[-1]), None, options)

    def _empty(self, length: int) -> list[int]:
        """Return the tokens of an empty prompt of that length, at least the end token where it has one."""
        start = [self.encoding.end_token] if self.encoding.empty_has_end else []
        return [*start, *[self.encoding.pad_token] * (length - len(start))]

    def _embed(self, chunk: Sequence[int | torch.Tensor]) -> tuple[torch.Tensor, list[int]]:
        """Return the rows [T, D] of a chunk, and 1 for each up to the end token, 0 for the others.

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
                rows.append(looked_up.pop(0))
                mask.append(int(not has_ended))
                has_ended = has_ended or int(token) == self.encoding.end_token
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
