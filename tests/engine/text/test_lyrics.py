"""Lyrics as ACE-Step reads them: the language of each line, numbers as words, kana as Latin letters."""

from __future__ import annotations

import pytest

from darkroom.engine.text.english_numbers import with_spoken_numbers
from darkroom.engine.text.lyrics import LINE_END, cleaned, language_of, letter_lyrics, lyrics_vocabulary
from darkroom.engine.text.romaji import romanised


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("0 or 21 of 1,234", "zero or twenty one of one thousand two hundred thirty four"),
        ("$5.50 and 3.14", "five point five and three point one four"),
        ("the 4th of 1000000", "the four of one million"),
        ("99999999999999999999.5 stars", "99999999999999999999.5 stars"),
        ("$1.2.3", "$one point two.three"),
    ],
)
def test_numbers_are_words(text: str, spoken: str) -> None:
    assert with_spoken_numbers(text) == spoken


def test_english_alone_is_written_out() -> None:
    assert cleaned('Mr. "X" & 2', "en") == "mister x and two"
    assert cleaned("Mr.  X & 2", "de") == "mr. x & 2"
    assert cleaned("İI", "tr") == "ii"


@pytest.mark.parametrize(
    ("kana", "latin"),
    [("がっこう", "gakkou"), ("キャッチ、ジョン。", "kyatchi, jon. "), ("っ", ""), ("love ヴ ゔ", "love vu ゔ")],
)
def test_kana_are_latin_letters(kana: str, latin: str) -> None:
    assert romanised(kana) == latin.replace("tchi", "cchi")


def test_a_mark_names_the_language_of_its_line() -> None:
    assert language_of("[de]Brücke") == ("de", "Brücke")
    assert language_of("[xx]what") == ("en", "[xx]what") and language_of("[verse]") == ("en", "[verse]")


def test_each_line_ends_with_a_token() -> None:
    vocabulary = lyrics_vocabulary(letter_lyrics())
    one, two = vocabulary.encode("la"), vocabulary.encode("la\n\n[ja]ラ")
    assert two[: len(one)] == one and one[-1] == LINE_END and two[len(one)] == LINE_END
    assert vocabulary.piece(two[len(one) + 1]) == "[ja]"


def test_another_file_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ACE-Step's vocab\.json"):
        lyrics_vocabulary(b"{}")
