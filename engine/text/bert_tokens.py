"""Prompts with weights as tokens of BERT, by WordPiece (Wu et al. 2016, arXiv 1609.08144).

The list of words comes with the files of the weights, or lies beside them. The tokenizers library is imported at the
first prompt.
"""

from __future__ import annotations

from functools import lru_cache

from engine.text.clip_tokens import Chunks, Weighted
from engine.text.language_tokens import BytePairVocabulary
from engine.text.sentence_pieces import Vocabulary
from engine.text.t5_tokens import T5Tokenizer

START_TOKEN, END_TOKEN, PAD_TOKEN = 101, 102, 0
SPECIAL = {"[PAD]": PAD_TOKEN, "[UNK]": 100, "[CLS]": START_TOKEN, "[SEP]": END_TOKEN, "[MASK]": 103}
LONGEST = 512  # tokens of a prompt, start and end included


@lru_cache(maxsize=2)
def word_pieces(content: bytes) -> Vocabulary:
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
    return BytePairVocabulary(made)


def letter_pieces() -> bytes:
    """Return a list of words that reads a text letter by letter, for encoders with random weights."""
    words = [f"[unused{number}]" for number in range(104)]
    for mark, number in SPECIAL.items():
        words[number] = mark
    letters = [chr(number) for number in range(33, 127)]
    return "\n".join([*words, *letters, *(f"##{letter}" for letter in letters)]).encode()


class BertTokenizer(T5Tokenizer):
    """Prompts -> one chunk of at most 512 tokens with weights, between a start and an end token."""

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: dict[str, object] | None = None,
        disable_weights: bool = False,
        **kwargs: object,
    ) -> Chunks:
        """Return the chunk by slot. Raises ValueError for a prompt of more tokens than BERT has places."""
        chunks = super().tokenize_with_weights(text, True, disable_weights=disable_weights)
        (chunk,) = chunks[self.slot]
        is_padded = len(chunk) == self.encoding.min_length and chunk[-1][0] == PAD_TOKEN
        whole: list[Weighted] = [(START_TOKEN, 1.0, 0), *(chunk[:-1] if is_padded else chunk)]
        if len(whole) > LONGEST:
            raise ValueError(f"text: the prompt is too long for BERT; got {len(whole)} tokens, expected {LONGEST}")
        if return_word_ids:
            return {self.slot: [whole]}
        return {self.slot: [[(token, weight) for token, weight, _ in whole]]}
