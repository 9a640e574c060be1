"""Tests of ByT5's tokens."""

from __future__ import annotations

import pytest

from darkroom.engine.text.byte_tokens import ByteVocabulary


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Ab", [68, 101]),
        ("é", [198, 172]),
        ("a<extra_id_3>b", [100, 262, 101]),
        ("</s><pad>", [1, 0]),
        ("", []),
    ],
)
def test_a_text_is_its_bytes_behind_three_special_tokens(text: str, tokens: list[int]) -> None:
    assert ByteVocabulary().encode(text) == tokens


def test_a_token_has_a_name() -> None:
    assert [ByteVocabulary().piece(token) for token in (0, 68, 262)] == ["<pad>", "A", "<extra_id_3>"]
