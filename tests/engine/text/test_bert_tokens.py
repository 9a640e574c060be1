"""Tests of BERT's tokens."""

from __future__ import annotations

from functools import partial

import pytest

from darkroom.engine.text.bert_tokens import (
    END_TOKEN,
    PAD_TOKEN,
    START_TOKEN,
    BertTokenizer,
    letter_pieces,
    word_pieces,
)
from darkroom.engine.text.t5_encoding import T5Encoding

ENCODING = T5Encoding(slot="hydit_clip", min_length=77, end_token=END_TOKEN)


def tokenizer() -> BertTokenizer:
    return BertTokenizer(None, encoding=ENCODING, vocabulary=partial(word_pieces, letter_pieces()))


def tokens(text: str) -> list[int]:
    (chunk,) = tokenizer().tokenize_with_weights(text)["hydit_clip"]
    return [token for token, _ in chunk]


@pytest.mark.parametrize("num_letters", [0, 1, 73, 74, 75, 76, 77, 510])
def test_a_prompt_is_between_its_ends_and_filled_up(num_letters: int) -> None:
    found = tokens(" ".join("a" * num_letters))
    letter = letter_pieces().decode().split("\n").index("a")
    whole = [START_TOKEN, *[letter] * num_letters, END_TOKEN]
    assert found == whole + [PAD_TOKEN] * (77 - len(whole))


def test_a_longer_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="too long for BERT; got 513 tokens, expected 512"):
        tokens(" ".join("a" * 511))


def test_letters_are_small_and_without_accents_and_marks_are_tokens() -> None:
    assert tokens("É [MASK]") == tokens("e [MASK]")
    assert tokens("[MASK]")[1] == 103


def test_another_list_of_words_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no list of BERT's words; got 2 lines, expected '\[PAD\]' in line 1"):
        word_pieces(b"a\nb")
