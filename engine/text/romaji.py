"""Japanese syllables in Latin letters (Hepburn), as ACE-Step reads them. Pure.

Tables are by rows of the syllabary; hiragana is behind katakana by a fixed distance.
"""

from __future__ import annotations

from functools import cache

VOWELS = "aiueo"
ROWS = {
    "アイウエオ": "", "カキクケコ": "k", "サシスセソ": "s", "タチツテト": "t", "ナニヌネノ": "n", "ハヒフヘホ": "h",
    "マミムメモ": "m", "ラリルレロ": "r", "ガギグゲゴ": "g", "ザジズゼゾ": "z", "ダヂヅデド": "d", "バビブベボ": "b",
    "パピプペポ": "p",
}  # fmt: skip
IRREGULAR = {
    "シ": "shi", "チ": "chi", "ツ": "tsu", "フ": "fu", "ジ": "ji", "ヂ": "ji", "ヅ": "zu", "ヤ": "ya", "ユ": "yu",
    "ヨ": "yo", "ワ": "wa", "ヲ": "wo", "ン": "n",
}  # fmt: skip
GLIDES = {
    "キ": "ky", "シ": "sh", "チ": "ch", "ニ": "ny", "ヒ": "hy", "ミ": "my", "リ": "ry", "ギ": "gy", "ジ": "j",
    "ビ": "by", "ピ": "py",
}  # fmt: skip
SMALL = {"ャ": "a", "ュ": "u", "ョ": "o"}  # behind a glide
OF_KATAKANA_ALONE = {"ャ": "ya", "ュ": "yu", "ョ": "yo", "ヴ": "vu"}
MARKS = {"\u3000": " ", "、": ", ", "。": ". "}
DOUBLING = "ッ"
TO_HIRAGANA = ord("ア") - ord("あ")
NOT_DOUBLED = "aiueon"


def _as_hiragana(katakana: str) -> str:
    return "".join(chr(ord(letter) - TO_HIRAGANA) for letter in katakana)


@cache
def syllables() -> dict[str, str]:
    """Return Latin letters by syllable, of one letter or two."""
    plain = {
        letter: consonant + vowel for row, consonant in ROWS.items() for letter, vowel in zip(row, VOWELS, strict=True)
    }
    plain |= IRREGULAR | {DOUBLING: ""}
    plain |= {first + small: glide + vowel for first, glide in GLIDES.items() for small, vowel in SMALL.items()}
    return plain | {_as_hiragana(name): value for name, value in plain.items()} | OF_KATAKANA_ALONE | MARKS


def romanised(text: str) -> str:
    """Return a text with its kana in Latin letters; other letters stay. A small tsu doubles the next consonant."""
    table, found, index = syllables(), [], 0
    doublings, smalls = (DOUBLING, _as_hiragana(DOUBLING)), (*SMALL, *map(_as_hiragana, SMALL))
    while index < len(text):
        letter, following = text[index], text[index + 1 : index + 2]
        index += 1
        if letter in doublings and following:
            consonant = table.get(following, "")[:1]
            found.append(consonant if consonant and consonant not in NOT_DOUBLED else "")
        elif following in smalls and letter + following in table:
            found.append(table[letter + following])
            index += 1
        else:
            found.append(table.get(letter, letter))
    return "".join(found)
