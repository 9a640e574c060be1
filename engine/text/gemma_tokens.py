"""Prompts as tokens of Gemma 3 (arXiv 2503.19786), padded before the prompt, with images among them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.nn import functional

from darkroom.engine.text.chunk_tokens import (
    Chunks,
    ChunkTokenizer,
    FindEmbedding,
    TokenizerOptions,
    Weighted,
)
from darkroom.engine.text.vocabulary import TextVocabulary

PAD_TOKEN, START_TOKEN, END_OF_TURN, IMAGE_TOKEN = 0, 2, 106, 262144
SPECIAL = {"<image_soft_token>": IMAGE_TOKEN, "<end_of_turn>": END_OF_TURN}
TURN = "<start_of_turn>"
ANSWER = f"<end_of_turn>\n{TURN}model\n"
SYSTEM = f"{TURN}system\nYou are a helpful assistant.<end_of_turn>\n{TURN}user\n"
TEMPLATE = SYSTEM + "{}" + ANSWER
IMAGE_TEMPLATE = SYSTEM + "\n<image_soft_token>{}<end_of_turn>\n\n" + f"{TURN}model\n"


MOST_IMAGES = 32  # of 256 tokens each: attention grows with the square of their number
IMAGE_PX = 896


class DecodingVocabulary(Protocol):
    """A tokenizer that also gives the text of tokens."""

    def encode(self, text: str) -> list[int]: ...

    def piece(self, token: int) -> str: ...

    def tokens_by_piece(self) -> dict[str, int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


class GemmaTokenizer(ChunkTokenizer):
    """Prompts -> one chunk of tokens of weight 1, of at least `min_length` with padding before them."""

    vocabulary: Callable[[], DecodingVocabulary]

    def __init__(
        self,
        find_embedding: FindEmbedding | None,
        *,
        slot: str,
        vocabulary: Callable[[], DecodingVocabulary],
        min_length: int,
    ) -> None:
        super().__init__(
            find_embedding,
            slot=slot,
            vocabulary=vocabulary,
            pad_token=PAD_TOKEN,
            start_token=START_TOKEN,
            min_length=min_length,
        )

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: TokenizerOptions | None = None,
        disable_weights: bool = True,
        llama_template: str | None = None,
        image: torch.Tensor | None = None,
        skip_template: bool = True,
        **kwargs: Any,
    ) -> Chunks:
        """Return the chunk by slot. Brackets are text, and options of lengths have no effect, as in ComfyUI.

        `image` [B, H, W, C] takes the place of the first image's token, all of a batch. The template is left out unless
        asked for, and for a text that begins with a turn; `llama_template` is one in its place. Raises ValueError for
        more images than a prompt may have.
        """
        if image is not None and len(image) > MOST_IMAGES:
            raise ValueError(f"image: too many for one prompt; got {len(image)}, expected at most {MOST_IMAGES}")
        if not skip_template and not text.startswith(TURN):
            template = llama_template or (TEMPLATE if image is None else IMAGE_TEMPLATE)
            text = template.format(text)
        chunks = super().tokenize_with_weights(text, return_word_ids, None, disable_weights=True)
        if image is not None:
            self._put_image(chunks[self.slot][0], image)
        return chunks

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of tokens, without those of turns and images unless `skip_special_tokens` is False."""
        kept = [token for token in tokens if not (skip_special_tokens and token in SPECIAL.values())]
        return self.vocabulary().decode(kept)

    def _put_image(self, chunk: list[Any], image: torch.Tensor) -> None:
        place = next((place for place, token in enumerate(chunk) if token[0] == IMAGE_TOKEN), None)
        if place is not None:
            chunk[place] = ({"type": "image", "data": _of_usual_size(image)}, *chunk[place][1:])

    def _encoded(self, text: str) -> Sequence[int]:
        """Return the tokens of a text with special ones among them, as `encoded_with_special`."""
        return encoded_with_special(text, self.vocabulary(), SPECIAL)

    def _end(self, chunk: list[Weighted], min_padding: int, min_length: int) -> None:
        """Put the padding before a chunk."""
        chunk[:0] = [(self.pad_token, 1.0, 0)] * (min_length - len(chunk))


def encoded_with_special(text: str, vocabulary: TextVocabulary, special: Mapping[str, int]) -> list[int]:
    """Return the tokens of a text with special ones, by name, among its words.

    The first token of a text with special tokens is left out: ComfyUI takes it for the start token, which its tokenizer
    puts before texts without them alone.
    """
    parts = [part for part in re.split("(" + "|".join(map(re.escape, special)) + ")", text) if part]
    if not any(part in special for part in parts):
        return vocabulary.encode(text)
    numbers = [number for part in parts for number in ([special[part]] if part in special else vocabulary.encode(part))]
    return numbers[1:]


def _of_usual_size(image: torch.Tensor) -> torch.Tensor:
    """Return images [B, H, W, 3] of their proportions with the area of the encoder's square."""
    height, width = image.shape[1:3]
    scale = math.sqrt(IMAGE_PX**2 / (height * width))
    size = (round(height * scale), round(width * scale))
    return functional.interpolate(image[..., :3].movedim(-1, 1), size=size, mode="area").movedim(1, -1)
