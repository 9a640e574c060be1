"""Prompts with weights as tokens of a language model, in the template of a chat where it has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from darkroom.engine.text.chunk_tokens import Chunks, ChunkTokenizer, FindEmbedding, TokenizerOptions
from darkroom.engine.text.gemma_tokens import encoded_with_special
from darkroom.engine.text.language_encoding import LanguageEncoding
from darkroom.engine.text.qwen_tokens import QWEN3_MARKS, qwen_vocabulary
from darkroom.engine.text.vocabulary import LibraryVocabulary, TextVocabulary


@cache
def qwen2() -> TextVocabulary:
    """Return the tokenizer of Qwen2.5."""
    return qwen_vocabulary()


@cache
def qwen3() -> LibraryVocabulary:
    """Return the tokenizer of Qwen3."""
    return qwen_vocabulary(QWEN3_MARKS)


class LanguageTokenizer(ChunkTokenizer):
    """Prompts -> one chunk of tokens with weights, without an end token, in the template of the encoding.

    `special` are the tokens, by name, that prompts of a SentencePiece vocabulary may have among their words.
    """

    def __init__(
        self,
        find_embedding: FindEmbedding | None = None,
        *,
        encoding: LanguageEncoding,
        vocabulary: Callable[[], TextVocabulary],
        special: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(
            find_embedding if encoding.takes_embeddings else None,
            slot=encoding.slot,
            vocabulary=vocabulary,
            pad_token=encoding.pad_token,
            start_token=encoding.start_token,
            min_length=encoding.min_length,
        )
        self.encoding = encoding
        self.special = special or {}

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: TokenizerOptions | None = None,
        disable_weights: bool = False,
        llama_template: str | None = None,
        **kwargs: Any,
    ) -> Chunks:
        """Return the chunk by slot, as `ChunkTokenizer.tokenize_with_weights`.

        `llama_template` is a template in place of the encoding's.
        """
        text = (self.encoding.template if llama_template is None else llama_template).format(text)
        is_plain = disable_weights or not self.encoding.takes_weights
        return super().tokenize_with_weights(text, return_word_ids, tokenizer_options, is_plain)

    def _encoded(self, text: str) -> Sequence[int]:
        """Return the tokens of a text with the special ones among them, as `encoded_with_special`."""
        vocabulary = self.vocabulary()
        return encoded_with_special(text, vocabulary, self.special) if self.special else vocabulary.encode(text)
