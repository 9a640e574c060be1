"""Encoding of prompts with weights, given as chunks of tokens, to conditioning by CLIP text encoders.

`B` chunks, `T` tokens, `D` width. A model's encoders form a set, each under its slot (`l`, `g`, `h`...). The modules
are called `clip_<slot>`, as in ComfyUI, because LoRA files and custom nodes use these names of weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn

START_TOKEN, END_TOKEN = 49406, 49407
log = logging.getLogger(__name__)

TokenWeights = Sequence[tuple[Any, float]]  # (token id or embedding [D] or [n, D], weight)
NO_OPTIONS: Mapping[str, torch.Tensor] = MappingProxyType({})


class Encoded(NamedTuple):
    """An encoded prompt: conditioning [B, T, D], pooled output [B, D], and further options of the conditioning.

    `pooled` is None for encoders without such an output. `options` are tensors by ComfyUI's names, such as
    `attention_mask` [B, T].
    """

    cond: torch.Tensor
    pooled: torch.Tensor | None
    options: Mapping[str, torch.Tensor] = NO_OPTIONS


@dataclass(frozen=True, slots=True)
class ClipEncoding:
    """Settings with which a model uses one of its text encoders.

    `layer` is the layer whose output is the conditioning unless a node asks for another one: None is the last, -2 the
    one before. `num_layers` is from where it is counted, in files too that leave out the layers behind it; None means
    that no file does. `normalises_layer` says that the output of a chosen layer passes the final norm, as that of the
    last one always does. `masks_padding`: no token attends to the padding. `embedding_width` is that of the textual
    inversions made for it.
    """

    slot: str
    embedding_width: int
    pad_token: int = END_TOKEN
    layer: int | None = None
    projects_pooled: bool = True
    num_layers: int | None = None
    normalises_layer: bool = True
    masks_padding: bool = False

    @property
    def key(self) -> str:
        """ComfyUI's name of the encoder."""
        return f"clip_{self.slot}"


class ClipEncoder(nn.Module):
    """An encoder of chunks of tokens. `transformer` is `engine/architectures/clip_text.py::ClipTextModel`."""

    def __init__(self, transformer: Any, encoding: ClipEncoding) -> None:
        super().__init__()
        self.config = transformer.config
        self.num_layers: int = transformer.num_layers
        self.encoding = encoding
        self.transformer = transformer

    def encode(
        self, chunks: Sequence[Sequence[Any]], layer_idx: int | None, project_pooled: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (conditioning [B, T, D], pooled [B, D]), float32. A layer beyond the first means the last one.

        The pooled output is projected where both the caller and the encoding want that.
        """
        embedded = [self._embed(chunk) for chunk in chunks]
        embeds = torch.stack([rows for rows, _ in embedded])
        layer = self._layer(self.encoding.layer if layer_idx is None else layer_idx)
        ends = torch.tensor([end for _, end in embedded], device=embeds.device)
        mask = _without_padding(ends, embeds) if self.encoding.masks_padding else None
        last, chosen = self.transformer.text_model(
            embeds, layer, normalises_layer=self.encoding.normalises_layer, mask=mask
        )
        pooled = last[torch.arange(last.shape[0], device=last.device), ends]
        if project_pooled and self.encoding.projects_pooled:
            pooled = self.transformer.text_projection(pooled)
        return chosen.float(), pooled.float()

    def _layer(self, layer_idx: int | None) -> int | None:
        """Return the index of a layer of the network, None for the last one."""
        counted = self.encoding.num_layers or self.num_layers
        if layer_idx is None or abs(layer_idx) > counted:
            return None
        index = layer_idx % counted
        return index if index < self.num_layers else None

    def encode_token_weights(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return (conditioning [1, T * chunks, D], pooled [1, D] of the first chunk).

        A token of weight w moves along the line from the empty prompt's output at its place: empty + w * (its own -
        empty).
        """
        tokens = [[token for token, _ in chunk] for chunk in chunks]
        weighted = not chunks or any(weight != 1.0 for chunk in chunks for _, weight in chunk)
        if weighted:
            length = max((len(chunk) for chunk in tokens), default=0)
            tokens = [*tokens, [START_TOKEN, END_TOKEN, *[self.encoding.pad_token] * (length - 2)]]
        cond, pooled = self.encode(tokens, layer_idx, project_pooled)
        if not chunks:
            return Encoded(cond[-1:], pooled[:1])
        if weighted:
            empty = cond[-1]
            weights = torch.tensor([[weight for _, weight in chunk] for chunk in chunks], device=cond.device)
            weights = weights.unsqueeze(-1)
            moved = (cond[: len(chunks)] - empty) * weights + empty
            cond = torch.where(weights != 1.0, moved, cond[: len(chunks)])
        return Encoded(cond.reshape(1, -1, cond.shape[-1]), pooled[:1])

    def _embed(self, chunk: Sequence[Any]) -> tuple[torch.Tensor, int]:
        """Return the rows [T, D] of a chunk, and the place whose output is the pooled one.

        Embeddings stand for themselves. The place is the first end token's, moved on by the embeddings behind it, as in
        ComfyUI, which counts them in wherever they are; only a prompt that spells an end token out has any there.
        """
        table = self.transformer.get_input_embeddings()
        width = table.embedding_dim
        numbers = [self.encoding.pad_token, *(int(token) for token in chunk if not isinstance(token, torch.Tensor))]
        pad_row, *looked_up = table(torch.tensor(numbers, device=table.weight.device)).unsqueeze(1)  # each [1, D]
        rows, has_ended, num_counted, left_out = [], False, 0, 0
        for token in chunk:
            if isinstance(token, torch.Tensor):
                if token.shape[-1] == width:
                    rows.append(token.reshape(-1, width).to(pad_row))
                    num_counted += rows[-1].shape[0]
                else:
                    left_out += max(1, token.numel() // token.shape[-1])
                continue
            rows.append(looked_up.pop(0))
            num_counted += not has_ended
            has_ended = has_ended or int(token) == END_TOKEN
        if left_out:
            log.warning("an embedding is not of the text encoder's width %d and is ignored", width)
            rows.append(pad_row.expand(left_out, -1))
        return torch.cat(rows), num_counted - 1


def _without_padding(ends: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
    """Return the mask [B, 1, T, T] by which tokens of `embeds` [B, T, D] attend to those before them, up to the end."""
    places = torch.arange(embeds.shape[1], device=embeds.device)
    is_seen = (places[None, :] <= places[:, None])[None] & (places[None, None, :] <= ends[:, None, None])
    mask = torch.zeros(is_seen.shape, dtype=embeds.dtype, device=embeds.device)
    return mask.masked_fill(~is_seen, -torch.inf)[:, None]


def only_encoder(encoded: Mapping[str, Encoded]) -> Encoded:
    """Return the conditioning of a set of one encoder."""
    (result,) = encoded.values()
    return result


class TextEncoderSet(nn.Module):
    """The text encoders of a model: prompts with weights -> conditioning.

    `combine` makes one conditioning of those of the encoders, by slot. `family` is the `ModelFamily` that the set
    belongs to.
    """

    def __init__(
        self,
        encoders: Sequence[ClipEncoder],
        *,
        combine: Callable[[Mapping[str, Encoded]], Encoded] = only_encoder,
        family: Any = None,
    ) -> None:
        super().__init__()
        for encoder in encoders:
            self.add_module(encoder.encoding.key, encoder)
        self.slots = {encoder.encoding.slot: encoder.encoding.key for encoder in encoders}
        self.family = family
        self._combine = combine
        # ComfyUI keeps text encoders as float16, so what it patches is rounded to that; see `engine/memory`.
        self.patched_dtype: torch.dtype | None = None

    def encoders(self) -> dict[str, ClipEncoder]:
        """Return the encoders by slot."""
        found: dict[str, Any] = {slot: getattr(self, key) for slot, key in self.slots.items()}
        return found

    def encode_token_weights(
        self, token_weight_pairs: Mapping[str, Sequence[TokenWeights]], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return the encoding of the tokens by slot, [1, T * chunks, D]; the pooled output is the first chunk's."""
        return self._combine(
            {
                slot: encoder.encode_token_weights(
                    token_weight_pairs[slot], layer_idx=layer_idx, project_pooled=project_pooled
                )
                for slot, encoder in self.encoders().items()
            }
        )
