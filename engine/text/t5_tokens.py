"""Prompts with weights as tokens of T5 encoders, by a SentencePiece unigram model (Kudo 2018, arXiv 1804.10959).

The vocabularies beside this file are Google's (`t5_tokenizer.json.gz`) and that of Pile-T5
(`pile_t5_tokenizer.model.gz`); their licences are stored next to them. Files of other encoders hold their own. They are
loaded at the first prompt.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from typing import Any

from engine.text.clip_tokens import EMBEDDING_PREFIX, FindEmbedding, Weighted
from engine.text.prompt_weights import parse_weights
from engine.text.sentence_pieces import SentencePieces, Vocabulary
from engine.text.t5_encoding import T5Encoding


class GoogleVocabulary:
    """T5's tokenizer of the tokenizers library."""

    def __init__(self) -> None:
        from tokenizers import Tokenizer  # a prompt for another encoder does without it

        self._tokenizer = Tokenizer.from_buffer(_unpacked("t5_tokenizer.json.gz"))

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def piece(self, token: int) -> str:
        return str(self._tokenizer.id_to_token(token))


@cache
def t5_vocabulary() -> Vocabulary:
    """Return the tokenizer of T5."""
    return GoogleVocabulary()


@cache
def pile_t5_vocabulary() -> Vocabulary:
    """Return the tokenizer of Pile-T5."""
    return SentencePieces(_unpacked("pile_t5_tokenizer.model.gz"))


def _unpacked(name: str) -> bytes:
    return gzip.decompress(resources.files("engine.text").joinpath(name).read_bytes())


class T5Tokenizer:
    """Prompts -> one chunk of tokens with weights, as long as the prompt, for the encoder of one slot.

    The chunk ends with the end token and is padded to the least length of the encoding. `vocabulary` is called at the
    first prompt.
    """

    def __init__(
        self,
        find_embedding: FindEmbedding | None = None,
        *,
        encoding: T5Encoding | None = None,
        vocabulary: Callable[[], Vocabulary] = t5_vocabulary,
    ) -> None:
        self.encoding = encoding or T5Encoding()
        self.find_embedding = find_embedding if self.encoding.takes_embeddings else None
        self.slot = self.encoding.slot
        self.vocabulary = vocabulary

    @property
    def key(self) -> str:
        """ComfyUI's name of the encoder."""
        return self.slot

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: dict[str, Any] | None = None,
        disable_weights: bool = False,
        **kwargs: Any,
    ) -> dict[str, list[list[Any]]]:
        """Return the chunk by slot (`{"t5xxl": [chunk]}`), of (token, weight), or (token, weight, word id).

        Options as nodes set them: `t5xxl_min_length`, `t5xxl_min_padding` (tokens of padding at the end).
        """
        options = tokenizer_options or {}
        parts = [(text, 1.0)] if disable_weights else parse_weights(text)
        words = (word for part, weight in parts for word in self._words(part, weight))
        chunk: list[Weighted] = [
            (token, weight, number) for number, word in enumerate(words, start=1) for token, weight in word
        ]
        pad: Weighted = (self.encoding.pad_token, 1.0, 0)
        chunk.extend([(self.encoding.end_token, 1.0, 0), *[pad] * (options.get(f"{self.slot}_min_padding") or 0)])
        chunk.extend([pad] * (options.get(f"{self.slot}_min_length", self.encoding.min_length) - len(chunk)))
        if return_word_ids:
            return {self.slot: [list(chunk)]}
        return {self.slot: [[(token, weight) for token, weight, _ in chunk]]}

    def untokenize(self, token_weight_pair: list[Any]) -> list[tuple[Any, str]]:
        return [(pair, self.vocabulary().piece(pair[0])) for pair in token_weight_pair]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def _words(self, part: str, weight: float) -> Iterator[list[tuple[Any, float]]]:
        """Yield the tokens of embeddings and of the text between them."""
        pieces = re.split(rf" {EMBEDDING_PREFIX}|\n{EMBEDDING_PREFIX}", part)
        for piece in [pieces[0], *(EMBEDDING_PREFIX + piece for piece in pieces[1:])]:
            text = piece
            if piece.startswith(EMBEDDING_PREFIX) and self.find_embedding is not None:
                rows, text = self.find_embedding(piece[len(EMBEDDING_PREFIX) :].strip("\n"))
                if rows is not None:
                    yield [(row, weight) for row in (rows.unsqueeze(0) if rows.ndim == 1 else rows)]
            if text:
                yield [(token, weight) for token in self.vocabulary().encode(text)]
