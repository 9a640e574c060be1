"""Prompts with weights as tokens of BERT, by WordPiece (Wu et al. 2016, arXiv 1609.08144).

The list of words comes with the files of the weights, or lies beside them. The tokenizers library is imported at the
first prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from darkroom.engine.text.chunk_tokens import ChunkTokenizer, FindEmbedding, Weighted, Word
from darkroom.engine.text.t5_encoding import T5Encoding
from darkroom.engine.text.vocabulary import LibraryVocabulary, TextVocabulary

START_TOKEN, END_TOKEN, PAD_TOKEN = 101, 102, 0
SPECIAL = {"[PAD]": PAD_TOKEN, "[UNK]": 100, "[CLS]": START_TOKEN, "[SEP]": END_TOKEN, "[MASK]": 103}
LONGEST = 512  # tokens of a prompt, start and end included


@lru_cache(maxsize=2)
def word_pieces(content: bytes) -> TextVocabulary:
    """Return the tokenizer of a list of words, one a line, built once for the latest ones.

    Raises ValueError for a list without the special tokens at their places.
    """
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers  # for this encoder alone

    words = {word: number for number, word in enumerate(content.decode("utf-8").split("\n")) if word}
    missing = [mark for mark, number in SPECIAL.items() if words.get(mark) != number]
    if missing:
        raise ValueError(
            f"tokenizer: it is no list of BERT's words; got {len(words)} lines, expected {missing[0]!r} in line "
            f"{SPECIAL[missing[0]] + 1}"
        )
    made = Tokenizer(models.WordPiece(vocab=words, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in SPECIAL])
    return LibraryVocabulary(made)


def letter_pieces() -> bytes:
    """Return a list of words that reads a text letter by letter, for encoders with random weights."""
    words = [f"[unused{number}]" for number in range(104)]
    for mark, number in SPECIAL.items():
        words[number] = mark
    letters = [chr(number) for number in range(33, 127)]
    return "\n".join([*words, *letters, *(f"##{letter}" for letter in letters)]).encode()


class BertTokenizer(ChunkTokenizer):
    """Prompts -> one chunk of at most 512 tokens with weights, between a start and an end token."""

    def __init__(
        self, find_embedding: FindEmbedding | None, *, encoding: T5Encoding, vocabulary: Callable[[], TextVocabulary]
    ) -> None:
        super().__init__(
            find_embedding if encoding.takes_embeddings else None,
            slot=encoding.slot,
            vocabulary=vocabulary,
            pad_token=PAD_TOKEN,
            start_token=START_TOKEN,
            end_token=END_TOKEN,
            min_length=encoding.min_length,
        )

    def _chunks(self, words: Sequence[Word], min_padding: int, min_length: int) -> list[list[Weighted]]:
        """Return the words as one chunk. Raises ValueError for a prompt of more tokens than BERT has places."""
        (chunk,) = super()._chunks(words, min_padding, min_length)
        if len(chunk) > LONGEST:
            raise ValueError(f"text: the prompt is too long for BERT; got {len(chunk)} tokens, expected {LONGEST}")
        return [chunk]
