"""Prompts with weights as tokens of T5 encoders, by a SentencePiece unigram model (Kudo 2018, arXiv 1804.10959).

The vocabularies beside this file are Google's (`t5_tokenizer.json.gz`) and that of Pile-T5
(`pile_t5_tokenizer.model.gz`); their licences are stored next to them. Files of other encoders hold their own. They are
loaded at the first prompt.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import cache
from importlib import resources

from darkroom.engine.text.chunk_tokens import ChunkTokenizer, FindEmbedding
from darkroom.engine.text.sentence_pieces import SentencePieces
from darkroom.engine.text.t5_encoding import T5Encoding
from darkroom.engine.text.vocabulary import LibraryVocabulary, TextVocabulary


@cache
def t5_vocabulary() -> TextVocabulary:
    """Return the tokenizer of T5."""
    from tokenizers import Tokenizer  # a prompt for another encoder does without it

    return LibraryVocabulary(Tokenizer.from_buffer(_unpacked("t5_tokenizer.json.gz")))


@cache
def pile_t5_vocabulary() -> TextVocabulary:
    """Return the tokenizer of Pile-T5."""
    return SentencePieces(_unpacked("pile_t5_tokenizer.model.gz"))


def _unpacked(name: str) -> bytes:
    return gzip.decompress(resources.files("darkroom.engine.text").joinpath(name).read_bytes())


class T5Tokenizer(ChunkTokenizer):
    """Prompts -> one chunk of tokens with weights that ends with the end token, as long as the encoding at least."""

    def __init__(
        self,
        find_embedding: FindEmbedding | None = None,
        *,
        encoding: T5Encoding | None = None,
        vocabulary: Callable[[], TextVocabulary] = t5_vocabulary,
    ) -> None:
        self.encoding = encoding or T5Encoding()
        super().__init__(
            find_embedding if self.encoding.takes_embeddings else None,
            slot=self.encoding.slot,
            vocabulary=vocabulary,
            pad_token=self.encoding.pad_token,
            end_token=self.encoding.end_token,
            min_length=self.encoding.min_length,
        )
