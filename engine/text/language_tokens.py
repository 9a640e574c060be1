"""Prompts with weights as tokens of a language model, in the template of a chat where it has one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from engine.text.clip_tokens import EMBEDDING_PREFIX, FindEmbedding, Weighted
from engine.text.language_encoding import LanguageEncoding
from engine.text.prompt_weights import parse_weights
from engine.text.qwen_tokens import QWEN3_MARKS, qwen_vocabulary
from engine.text.sentence_pieces import Vocabulary


class BytePairVocabulary:
    """A tokenizer of the tokenizers library."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def piece(self, token: int) -> str:
        return str(self._tokenizer.id_to_token(token))


@cache
def qwen2() -> Vocabulary:
    """Return the tokenizer of Qwen2.5."""
    return BytePairVocabulary(qwen_vocabulary())


@cache
def qwen3() -> Vocabulary:
    """Return the tokenizer of Qwen3."""
    return BytePairVocabulary(qwen_vocabulary(QWEN3_MARKS))


class LanguageTokenizer:
    """Prompts -> one chunk of tokens with weights, as long as the prompt, for the encoder of one slot.

    The chunk has no end token. `vocabulary` is called at the first prompt.
    """

    def __init__(
        self,
        find_embedding: FindEmbedding | None = None,
        *,
        encoding: LanguageEncoding,
        vocabulary: Callable[[], Vocabulary],
    ) -> None:
        self.encoding = encoding
        self.find_embedding = find_embedding if encoding.takes_embeddings else None
        self.slot = encoding.slot
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
        llama_template: str | None = None,
        **kwargs: Any,
    ) -> dict[str, list[list[Any]]]:
        """Return the chunk by slot (`{"gemma2_2b": [chunk]}`), of (token, weight), or (token, weight, word id).

        `llama_template` is a template in place of the encoding's. Options as nodes set them: `gemma2_2b_min_length`,
        `gemma2_2b_min_padding` (tokens of padding at the end).
        """
        options = tokenizer_options or {}
        text = (self.encoding.template if llama_template is None else llama_template).format(text)
        is_plain = disable_weights or not self.encoding.takes_weights
        parts = [(_unescaped(text), 1.0)] if is_plain else parse_weights(text)
        words = (word for part, weight in parts for word in self._words(part, weight))
        start = self.encoding.start_token
        chunk: list[Weighted] = [] if start is None else [(start, 1.0, 0)]
        chunk.extend((token, weight, number) for number, word in enumerate(words, start=1) for token, weight in word)
        pad: Weighted = (self.encoding.pad_token, 1.0, 0)
        chunk.extend([pad] * (options.get(f"{self.slot}_min_padding") or 0))
        chunk.extend([pad] * (options.get(f"{self.slot}_min_length", self.encoding.min_length) - len(chunk)))
        if return_word_ids:
            return {self.slot: [list(chunk)]}
        return {self.slot: [[(token, weight) for token, weight, _ in chunk]]}

    def untokenize(self, token_weight_pair: list[Any]) -> list[tuple[object, str]]:
        return [(pair, self.vocabulary().piece(pair[0])) for pair in token_weight_pair]

    def state_dict(self) -> dict[str, object]:
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


def _unescaped(text: str) -> str:
    """Return a text whose brackets have no weights, without the marks that would keep them."""
    return text.replace("\\)", ")").replace("\\(", "(")
