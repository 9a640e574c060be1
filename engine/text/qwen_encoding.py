"""Encoding of prompts in a chat template, with pictures among their tokens, to conditioning by Qwen2.5-VL.

`T` tokens, `D` width.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from engine.text.clip_encoding import Encoded, TokenWeights
from engine.text.picture_places import SeenPicture, places_among
from engine.text.qwen_tokens import NEW_LINE_TOKEN, PAD_TOKEN, START_TOKEN, USER_TOKEN

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QwenEncoding:
    """Settings with which a model uses Qwen2.5-VL: the templates of its prompts, `{}` for the prompt."""

    slot: str
    template: str
    picture_template: str
    embedding_width: int = 3584

    @property
    def key(self) -> str:
        """ComfyUI's name of the encoder."""
        return self.slot


class QwenEncoder(nn.Module):
    """An encoder of one chunk of tokens. `transformer` is `picture_language_model.py::PictureLanguageModel`."""

    def __init__(self, transformer: Any, encoding: QwenEncoding) -> None:
        super().__init__()
        self.config = transformer.config
        self.num_layers: int = transformer.num_layers
        self.encoding = encoding
        self.transformer = transformer

    def encode(self, chunk: Sequence[Any], layer_idx: int | None) -> torch.Tensor:
        """Return the conditioning [1, T, D] of all tokens, float32.

        That of a layer is without the final norm; one beyond the first means the last one, with it. Raises ValueError
        for a picture where the file had no picture encoder.
        """
        is_last = layer_idx is None or abs(layer_idx) > self.num_layers
        embeds, mask, pictures = self._embed(chunk)
        positions = places_among(pictures, embeds.shape[1]).to(embeds.device) if pictures else None
        cond: torch.Tensor = self.transformer.model(embeds, mask, None if is_last else layer_idx, positions=positions)
        return cond.float()

    def encode_token_weights(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return the conditioning [1, T, D] of what follows the template's beginning; there is no pooled output.

        Only the first chunk is read, and no weights: the tokenizer makes one, without any.
        """
        tokens = [token for token, _ in chunks[0]]
        cond = self.encode(tokens, layer_idx)
        return Encoded(cond[:, template_end(tokens, cond.shape[1]) :], None)

    def _embed(self, chunk: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor | None, list[SeenPicture]]:
        """Return the rows [1, T, D] of a chunk, the mask of the tokens up to the padding [1, T], and its pictures."""
        table = self.transformer.get_input_embeddings()
        width: int = table.embedding_dim
        numbers = [PAD_TOKEN, *(int(token) for token in chunk if _is_number(token))]
        pad_row, *looked_up = table(torch.tensor(numbers, device=table.weight.device)).unsqueeze(1)  # each [1, D]
        rows: list[torch.Tensor] = []
        is_seen: list[bool] = []
        pictures: list[SeenPicture] = []
        has_ended, left_out = False, 0
        for token in chunk:
            if _is_number(token):
                has_ended = has_ended or int(token) == PAD_TOKEN
                rows.append(looked_up.pop(0))
                is_seen.append(not has_ended)
                continue
            if isinstance(token, dict):
                seen, (num_rows, num_columns) = self._see(token, pad_row)
                pictures.append(SeenPicture(len(is_seen), num_rows, num_columns))
            else:
                seen = token.reshape(-1, token.shape[-1]).to(pad_row)
            if seen.shape[-1] != width:
                left_out += seen.shape[0]
                continue
            rows.append(seen)
            is_seen.extend([True] * seen.shape[0])
        if left_out:
            log.warning("an embedding is not of the text encoder's width %d and is ignored", width)
            rows.append(pad_row.expand(left_out, -1))
            is_seen.extend([False] * left_out)
        embeds = torch.cat(rows)[None]
        mask = None if all(is_seen) else torch.tensor([is_seen], device=embeds.device)
        return embeds, mask, pictures

    def _see(self, token: dict[str, Any], like: torch.Tensor) -> tuple[torch.Tensor, tuple[int, int]]:
        """Return the rows [N, D] of a picture's token, and how many rows and columns of the picture they are."""
        if token.get("type") != "image" or self.transformer.visual is None:
            raise ValueError(
                "image: this file of the text encoder has no picture encoder; got a prompt with a picture, expected a "
                "file with the weights 'visual.*'"
            )
        rows, size = self.transformer.visual(token["data"][0, :, :, :3].to(like.device), like.dtype)
        return rows, size


def _is_number(token: object) -> bool:
    return not isinstance(token, dict | torch.Tensor)


def template_end(tokens: Sequence[object], num_embedded: int) -> int:
    """Return the place from which the output of `num_embedded` tokens is of the prompt: behind the second turn's start.

    -1, the last token, for a prompt without turns, as in ComfyUI.
    """
    starts = [place for place, token in enumerate(tokens) if _is_number(token) and token == START_TOKEN][:2]
    end = starts[-1] if starts else -1
    follows = [token for token in tokens[end + 1 : end + 3] if _is_number(token)]
    if num_embedded > end + 3 and follows == [USER_TOKEN, NEW_LINE_TOKEN]:
        end += 3
    return end
