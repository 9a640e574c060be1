"""Texts as tokens of ByT5 (Xue et al. 2022, arXiv 2105.13626): bytes, behind three special tokens."""

from __future__ import annotations

import re

FIRST_BYTE, NUM_EXTRA = 3, 125
FIRST_EXTRA = FIRST_BYTE + 256
SPECIAL = {
    "<pad>": 0, "</s>": 1, "<unk>": 2, **{f"<extra_id_{number}>": FIRST_EXTRA + number for number in range(NUM_EXTRA)},
}  # fmt: skip
NAMES = {token: name for name, token in SPECIAL.items()}
MARKS = re.compile("|".join(map(re.escape, SPECIAL)))


class ByteVocabulary:
    """ByT5's tokenizer, without special tokens but those that the text names."""

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = []
        place = 0
        for mark in MARKS.finditer(text):
            tokens += _bytes_of(text[place : mark.start()])
            tokens.append(SPECIAL[mark.group()])
            place = mark.end()
        return tokens + _bytes_of(text[place:])

    def piece(self, token: int) -> str:
        return NAMES.get(token) or chr(token - FIRST_BYTE)

    def tokens_by_piece(self) -> dict[str, int]:
        return {**{chr(number): FIRST_BYTE + number for number in range(256)}, **SPECIAL}


def _bytes_of(text: str) -> list[int]:
    return [FIRST_BYTE + number for number in text.encode("utf-8", "replace")]
