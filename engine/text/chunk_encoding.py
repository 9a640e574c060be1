"""Base of the text encoders: chunks of tokens with weights -> conditioning.

`B` chunks, `T` tokens, `D` width.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

from darkroom.engine.log_context import report_warning
from darkroom.engine.text.encoded import NO_OPTIONS as NO_OPTIONS
from darkroom.engine.text.encoded import Encoded as Encoded
from darkroom.engine.text.encoder_members import EncoderMembers

log = logging.getLogger(__name__)

TokenWeights = Sequence[Sequence[Any]]
"""(token id or embedding [D] or [n, D], weight) of each token; packs leave more behind, such as the word's number."""


class TokenEncoding(Protocol):
    """Settings that every encoder has: ComfyUI's name of the encoder and the token of the padding."""

    @property
    def key(self) -> str: ...

    @property
    def pad_token(self) -> int: ...


class TokenEncoder(EncoderMembers, nn.Module):
    """An encoder of tokens by the network `transformer`."""

    encoding: TokenEncoding

    def __init__(self, transformer: Any, encoding: TokenEncoding) -> None:
        super().__init__()
        self.config = transformer.config
        self.num_layers: int = transformer.num_layers
        self.encoding = encoding
        self.transformer = transformer
        self.set_up_options()

    def _embed(self, chunk: Sequence[Any]) -> tuple[torch.Tensor, list[int]]:
        """Return the rows [T, D] of a chunk, and how many of them each of its tokens and embeddings has.

        Embeddings stand for themselves. Those of another width have no rows; as much padding is behind the last row.
        """
        table = self.transformer.get_input_embeddings()
        width: int = table.embedding_dim
        numbers = [self.encoding.pad_token, *numbers_of(chunk)]
        pad_row, *looked_up = table(torch.tensor(numbers, device=table.weight.device)).unsqueeze(1)  # each [1, D]
        rows: list[torch.Tensor] = []
        num_rows: list[int] = []
        left_out = 0
        for token in chunk:
            if not isinstance(token, torch.Tensor):
                rows.append(looked_up.pop(0))
                num_rows.append(1)
            elif token.shape[-1] == width:
                rows.append(token.reshape(-1, width).to(pad_row))
                num_rows.append(rows[-1].shape[0])
            else:
                left_out += max(1, token.numel() // token.shape[-1])
                num_rows.append(0)
        if left_out:
            message = f"an embedding is not of the text encoder's width {width} and is left out"
            report_warning(log, "embedding_left_out", message)
            rows.append(pad_row.expand(left_out, -1))
        return torch.cat(rows), num_rows


class ChunkEncoder(TokenEncoder, ABC):
    """An encoder of chunks of tokens with weights, padding included."""

    @abstractmethod
    def encode_chunks(self, chunks: Sequence[Sequence[Any]], layer_idx: int | None, *, project_pooled: bool) -> Encoded:
        """Return the conditioning [B, T, D], float32, of the chunks, with what else the encoder has of each."""

    @abstractmethod
    def empty(self, length: int) -> list[int]:
        """Return the tokens of an empty prompt of that length, at least those that every prompt has."""

    def encode_weighted(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return the conditioning [1, T * chunks, D], the pooled output [1, D] of the first chunk, and the options.

        A token of weight w moves along the line from the empty prompt's output at its place: empty + w * (its own -
        empty).
        """
        tokens = [[token[0] for token in chunk] for chunk in chunks]
        is_weighted = not chunks or any(token[1] != 1.0 for chunk in chunks for token in chunk)
        if is_weighted:
            tokens = [*tokens, self.empty(max((len(chunk) for chunk in tokens), default=0))]
        cond, pooled, options = self.encode_chunks(tokens, layer_idx, project_pooled=project_pooled)
        pooled = None if pooled is None else pooled[:1]
        options = {name: of_chunks[: len(chunks)].reshape(1, -1) for name, of_chunks in options.items()}
        if not chunks:
            return Encoded(cond[-1:], pooled, options)
        if is_weighted:
            weights = torch.tensor([[token[1] for token in chunk] for chunk in chunks], device=cond.device)
            cond = self._weighted(cond[: len(chunks)], cond[-1], weights)
        return Encoded(torch.cat(list(cond[:, None]), dim=-2), pooled, options)

    def _weighted(self, cond: torch.Tensor, empty: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the conditioning [B, T, D] with the weights [B, T] of its tokens."""
        factors = weights.unsqueeze(-1)
        return torch.where(factors != 1.0, (cond - empty) * factors + empty, cond)


class MaskingEncoder(ChunkEncoder):
    """An encoder whose output comes with a mask of the tokens, without a pooled one.

    `vocabulary` is the serialised tokenizer of its file, `second_vocabulary` that of texts beside the prompt, each None
    where it has none.
    """

    def __init__(self, transformer: Any, encoding: TokenEncoding) -> None:
        super().__init__(transformer, encoding)
        self.vocabulary: bytes | None = None
        self.second_vocabulary: bytes | None = None

    @property
    @abstractmethod
    def returns_mask(self) -> bool:
        """True if the mask is an option of the conditioning."""

    @abstractmethod
    def _num_seen(self, numbers: Sequence[int]) -> int:
        """Return the number of a chunk's tokens, without embeddings, that others attend to."""

    @abstractmethod
    def _states(self, embeds: torch.Tensor, mask: torch.Tensor, layer_idx: int | None) -> torch.Tensor:
        """Return the output of the network, or of its layer, for these rows [B, T, D]."""

    def encode(self, chunks: Sequence[Sequence[Any]], layer_idx: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the conditioning [B, T, D], float32, and the mask of tokens [B, T] (1 for those seen, else 0).

        A layer beyond the first means the whole network.
        """
        embedded = [self._embed(chunk) for chunk in chunks]
        embeds = torch.stack([rows for rows, _ in embedded])
        masks = [
            seen_rows(chunk, num_rows, len(rows), self._num_seen(numbers_of(chunk)))
            for chunk, (rows, num_rows) in zip(chunks, embedded, strict=True)
        ]
        mask = torch.tensor(masks, device=embeds.device)
        return self._states(embeds, mask, layer_idx).float(), mask

    def encode_chunks(self, chunks: Sequence[Sequence[Any]], layer_idx: int | None, *, project_pooled: bool) -> Encoded:
        cond, mask = self.encode(chunks, layer_idx)
        return Encoded(cond, None, {"attention_mask": mask} if self.returns_mask else NO_OPTIONS)


def seen_rows(chunk: Sequence[Any], num_rows: Sequence[int], length: int, num_seen: int) -> list[int]:
    """Return 1 for each of `length` rows that others attend to, 0 for the others.

    `num_rows` are those of each token and embedding. Of the tokens the first `num_seen` are seen, embeddings always,
    the rows behind them never.
    """
    mask: list[int] = []
    for token, num in zip(chunk, num_rows, strict=True):
        if isinstance(token, torch.Tensor):
            mask.extend([1] * num)
        else:
            mask.append(int(num_seen > 0))
            num_seen -= 1
    return mask + [0] * (length - len(mask))


def numbers_of(chunk: Sequence[Any]) -> list[int]:
    """Return the tokens of a chunk, its embeddings left out."""
    return [int(token) for token in chunk if not isinstance(token, torch.Tensor)]
