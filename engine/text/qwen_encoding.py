"""Encoding of prompts in a chat template, with images among their tokens, by Qwen2.5-VL or Qwen3-VL.

`T` tokens, `D` width.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from darkroom.engine.text.chunk_encoding import Encoded, TokenEncoder, TokenWeights, numbers_of, seen_rows
from darkroom.engine.text.image_places import SeenImage, places_among
from darkroom.engine.text.qwen_tokens import END_TOKEN, NEW_LINE_TOKEN, PAD_TOKEN, START_TOKEN, USER_TOKEN

PAIR = "minimax_video_block"  # of a token whose image is two frames of a video, as ComfyUI calls it


@dataclass(frozen=True, slots=True)
class QwenEncoding:
    """Settings with which a model uses a language model that sees: templates of prompts, `{}` for the prompt.

    `writes_text`: the model predicts tokens with the table of its embedding, so that its file has all that it needs.
    """

    slot: str
    template: str
    image_template: str
    embedding_width: int = 3584
    writes_text: bool = False

    @property
    def key(self) -> str:
        """ComfyUI's name of the encoder."""
        return self.slot

    @property
    def pad_token(self) -> int:
        return PAD_TOKEN


class _View(NamedTuple):
    """The rows [N, D] of an image, the rows that go to layers by themselves, and its rows and columns of tokens."""

    rows: torch.Tensor
    by_layer: Sequence[torch.Tensor]
    size: tuple[int, int]


class Read(NamedTuple):
    """The states [1, T, D] of tokens in a language model, the first row of each token, and the places of images."""

    cond: torch.Tensor
    firsts: Sequence[int]
    images: Sequence[SeenImage]


class QwenEncoder(TokenEncoder):
    """An encoder of one chunk of tokens.

    `transformer` is `engine/layers/vision_language_model.py::VisionLanguageModel`.
    """

    encoding: QwenEncoding
    masks_padding = True  # what is behind a token of padding is not seen
    ends_with_norm = True  # the last layer is read behind the final norm
    norms_layers = False  # the others are, too
    padding_position: float | None = None  # of padding behind images; None: it counts on
    end_tokens = (PAD_TOKEN, END_TOKEN)  # behind which a written text is over

    def encode(self, chunk: Sequence[Any], layer_idx: int | None) -> torch.Tensor:
        """Return the conditioning [1, T, D] of all tokens, float32.

        That of a layer is without the final norm; one beyond the first means the last one, with it unless the encoder
        does not end with it. Raises ValueError for an image where the file had no image encoder.
        """
        return self.read(chunk, layer_idx).cond

    def read(self, chunk: Sequence[Any], layer_idx: int | None) -> Read:
        """Return the conditioning as `encode` does, with the places of tokens and images in it."""
        is_last = layer_idx is None or abs(layer_idx) > self.num_layers
        rows, num_rows, tokens, images, added = self._rows(chunk)
        numbers = numbers_of(tokens)
        is_padded = self.masks_padding and PAD_TOKEN in numbers
        num_seen = numbers.index(PAD_TOKEN) if is_padded else len(numbers)
        seen = seen_rows(tokens, num_rows, len(rows), num_seen)
        mask = None if all(seen) else torch.tensor([seen], dtype=torch.bool, device=rows.device)
        positions = self._positions(images, seen).to(rows.device) if images else None
        last = None if self.ends_with_norm else self.num_layers - 1
        cond = self._states(rows[None], mask, last if is_last else layer_idx, positions, added).float()
        return Read(cond, list(accumulate(num_rows, initial=0)), images)

    def _positions(self, images: Sequence[SeenImage], seen: Sequence[int]) -> torch.Tensor:
        """Return the positions [3, T] of tokens with images among them; `seen` is 1 for rows that others attend to."""
        positions = places_among(images, len(seen))
        if self.padding_position is not None:
            positions[:, torch.tensor(seen) == 0] = self.padding_position
        return positions

    def written(self, chunk: Sequence[Any]) -> Generator[torch.Tensor, int, None]:
        """Yield the scores [1, V] of the token that follows, and take it; each is seen by those behind it.

        Raises ValueError for an image where the file had no image encoder.
        """
        rows, _, _, images, added = self._rows(chunk)
        positions = places_among(images, len(rows)).to(rows.device) if images else None
        model = self.transformer.model
        past = model.empty_past()
        while True:
            *_, last = model.states(rows[None], positions=positions, added=added, past=past)
            table = model.embed_tokens.weight
            token = yield functional.linear(model.norm(last[:, -1]), table.to(last))
            rows, added = model.embed_tokens(torch.tensor([token], device=rows.device)).to(rows), ()
            positions = None if positions is None else positions[:, -1:].max().view(1, 1) + 1

    def _rows(
        self, chunk: Sequence[Any]
    ) -> tuple[torch.Tensor, list[int], list[Any], list[SeenImage], Sequence[torch.Tensor]]:
        """Return the rows [T, D] of tokens, how many each has, the tokens, their images, and those for layers."""
        views = {place: self._see(token) for place, token in enumerate(chunk) if isinstance(token, dict)}
        tokens = [views[place].rows if place in views else token for place, token in enumerate(chunk)]
        rows, num_rows = self._embed(tokens)
        firsts = list(accumulate(num_rows, initial=0))
        images = [SeenImage(firsts[place], *view.size) for place, view in views.items()]
        return rows, num_rows, tokens, images, _rows_by_layer(images, [v.by_layer for v in views.values()], rows)

    def _states(
        self,
        embeds: torch.Tensor,
        mask: torch.Tensor | None,
        layer: int | None,
        positions: torch.Tensor | None,
        added: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """Return the output [1, T, D] of the network, or of its layer, for rows [1, T, D].

        `added` [T, D] are the rows that images add to the outputs of the first layers.
        """
        model = self.transformer.model
        states: torch.Tensor = model(embeds, mask, layer, positions=positions, added=added)
        return model.norm(states) if self.norms_layers and layer is not None else states

    def encode_weighted(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return the conditioning [1, T, D] of what follows the template's beginning; there is no pooled output.

        Only the first chunk is read, and no weights: the tokenizer makes one, without any.
        """
        tokens = [token[0] for token in chunks[0]]
        cond = self.encode(tokens, layer_idx)
        return Encoded(cond[:, template_end(tokens, cond.shape[1]) :], None)

    def _see(self, token: dict[str, Any]) -> _View:
        """Return the image encoder's output for the image of a token."""
        if token.get("type") != "image" or self.transformer.visual is None:
            raise ValueError(
                "image: this file of the text encoder has no image encoder; got a prompt with an image, expected a "
                "file with the weights 'visual.*'"
            )
        like, _ = self._embed([PAD_TOKEN])
        frames = token["data"][:, :, :, :3].to(like.device)
        rows, *by_layer, size = self.transformer.visual(frames if token.get(PAIR) else frames[0], like.dtype)
        return _View(rows, by_layer[0] if by_layer else (), size)


def _rows_by_layer(
    images: Sequence[SeenImage], features: Sequence[Sequence[torch.Tensor]], like: torch.Tensor
) -> list[torch.Tensor]:
    """Return the features of all images by layer, each in the places of its image's tokens: [T, D], else zero."""
    added = [torch.zeros_like(like) for _ in (features[0] if features else ())]
    for image, by_layer in zip(images, features, strict=True):
        for rows, seen in zip(added, by_layer, strict=True):
            rows[image.first : image.first + image.num_tokens] = seen
    return added


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


class TappedQwenEncoder(QwenEncoder):
    """A language model whose conditioning is what some layers read, side by side [1, T, layers * D].

    A node that asks for another layer (`CLIPSetLastLayer`) changes nothing, as in ComfyUI.
    """

    def __init__(self, transformer: Any, encoding: QwenEncoding, *, layers: tuple[int, ...]) -> None:
        super().__init__(transformer, encoding)
        self.layers = layers

    @property
    def output_width(self) -> int:
        """Width of a token of the conditioning."""
        width: int = self.config.width
        return width * len(self.layers)

    def _states(
        self,
        embeds: torch.Tensor,
        mask: torch.Tensor | None,
        layer: int | None,
        positions: torch.Tensor | None,
        added: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        states: torch.Tensor = self.transformer.model.chosen_states(
            self.layers, embeds, mask, positions=positions, added=added
        )
        return states.transpose(1, 2).flatten(2)
