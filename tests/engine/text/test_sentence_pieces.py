"""Texts as tokens of serialised SentencePiece models."""

from __future__ import annotations

import pytest

from darkroom.engine.text.sentence_pieces import SentencePieces, byte_vocabulary, sentence_pieces
from darkroom.engine.text.t5_tokens import pile_t5_vocabulary


def test_the_vocabulary_of_bytes_reads_every_text_back() -> None:
    pieces = SentencePieces(byte_vocabulary())
    tokens = pieces.encode("a cät")
    assert [pieces.piece(token) for token in tokens] == ["▁", "<0x61>", "▁", "<0x63>", "<0xC3>", "<0xA4>", "<0x74>"]
    assert pieces.encode("") == []


def test_a_model_is_read_once() -> None:
    assert sentence_pieces(byte_vocabulary()) is sentence_pieces(byte_vocabulary())


@pytest.mark.parametrize("content", [b"", b"abc", bytes(100)])
def test_bytes_that_are_no_model_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=f"got {len(content)} bytes"):
        SentencePieces(content)


def test_a_text_has_the_tokens_of_pile_t5() -> None:
    pieces = pile_t5_vocabulary()
    tokens = pieces.encode("Hello world")
    assert tokens == [15043, 3186]  # as the transformers library documents LLaMA's tokenizer, whose pieces these are
    assert [pieces.piece(token) for token in tokens] == ["▁Hello", "▁world"]
