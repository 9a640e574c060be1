"""Encoding of prompts by all layers of a Gemma 3, which a network of a family reads side by side.

`T` tokens, `D` hidden size, `L` layers.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from darkroom.engine.text.chunk_encoding import Encoded, TokenEncoder, TokenWeights
from darkroom.engine.text.gemma_tokens import END_OF_TURN, PAD_TOKEN, START_TOKEN


@dataclass(frozen=True, slots=True)
class GemmaEncoding:
    """Settings with which a model uses a Gemma 3. The model predicts tokens with the table of its embedding."""

    slot: str
    embedding_width: int
    min_length: int = 1024
    writes_text: bool = True

    @property
    def key(self) -> str:
        """ComfyUI's name of the encoder."""
        return self.slot

    @property
    def pad_token(self) -> int:
        return PAD_TOKEN

    @property
    def start_token(self) -> int:
        return START_TOKEN


class GemmaEncoder(TokenEncoder):
    """An encoder of one chunk of tokens. `transformer` is `engine/layers/gemma_vision.py::GemmaModel`.

    `vocabulary` is the serialised tokenizer of its file.
    """

    encoding: GemmaEncoding
    end_tokens = (END_OF_TURN,)  # behind which a written text is over

    def __init__(self, transformer: Any, encoding: GemmaEncoding) -> None:
        super().__init__(transformer, encoding)
        self.vocabulary: bytes | None = None

    def encode_weighted(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return the input of each layer and the output of all [1, L + 1, T, D], of the first chunk.

        `T` tokens are those behind the padding: it is seen by none of them, so that it is not computed. They are where
        they are behind it.
        """
        tokens = [token[0] for token in chunks[0]]
        padding = _num_padding(tokens)
        rows = self._rows(tokens[padding:])
        positions = torch.arange(padding, padding + len(rows), device=rows.device)[None]
        states: torch.Tensor = self.transformer.model.all_states(rows[None], positions=positions)
        return Encoded(states, None)

    def written(self, chunk: Sequence[Any]) -> Generator[torch.Tensor, int, None]:
        """Yield the scores [1, V] of the token that follows, and take it; each is seen by those behind it.

        The padding before a prompt is seen like its tokens, as in ComfyUI.
        """
        rows = self._rows(chunk)
        model = self.transformer.model
        past = model.empty_past()
        while True:
            *_, last = model.states(rows[None], past=past)
            table = model.embed_tokens.weight
            token = yield functional.linear(model.norm(last[:, -1]), table.to(last))
            rows = model.embed_tokens(torch.tensor([token], device=rows.device)).to(rows)

    def _rows(self, tokens: Sequence[Any]) -> torch.Tensor:
        """Return the rows [T, D] of tokens and of the images among them."""
        seen = [self._see(token) if isinstance(token, dict) else token for token in tokens]
        return self._embed(seen)[0]

    def _see(self, token: dict[str, Any]) -> torch.Tensor:
        """Return the rows [N, D] of a token's images, one image at a time. Raises ValueError for other inputs."""
        if token.get("type") != "image":
            raise ValueError(f"prompt: Gemma 3 reads text and images; got {token.get('type')}, expected one of them")
        if self.transformer.vision_model is None:
            raise ValueError(
                "image: this file of the text encoder has no image encoder; got a prompt with an image, expected a "
                "file with the weights 'vision_model.*'"
            )
        like, _ = self._embed([PAD_TOKEN])
        return torch.cat([self.transformer.image_tokens(image[None].to(like))[0] for image in token["data"]])


def _num_padding(tokens: Sequence[Any]) -> int:
    """Return the number of tokens of padding before a prompt."""
    first = (place for place, token in enumerate(tokens) if not isinstance(token, int) or token != PAD_TOKEN)
    return next(first, len(tokens) - 1)
