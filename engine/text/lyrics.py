"""Lyrics as tokens of ACE-Step: line by line, each in the language that its mark names, and Japanese by its kana.

The tokenizer is a file (`vocab.json` of the original repository), which is no part of the engine.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from darkroom.engine.text.english_numbers import with_spoken_abbreviations, with_spoken_numbers, with_spoken_symbols
from darkroom.engine.text.romaji import romanised

START_TOKEN, LINE_END = 261, 2
LANGUAGES = frozenset(
    ("en", "de", "fr", "es", "it", "pt", "pl", "tr", "ru", "cs", "nl", "ar", "zh", "ja", "hu", "ko", "hi")
)
ENGLISH, JAPANESE = "en", "ja"
MARK_LENGTH = 4  # "[de]"
SECTION = re.compile(r"\[.*?\]")  # "[verse]": read as English
BLANKS = re.compile(r"\s+")
SPACE, UNKNOWN = "[SPACE]", "[UNK]"
MARKED = {"zh": "zh-cn"}  # languages that the tokenizer calls otherwise
FURTHER_LETTERS = "äöüßéèêçñãõíóúåøабвгдежзийклмнопрстуфхцчшщъыьэюя我爱你"  # of random models' tokenizers
TURKISH = str.maketrans({"İ": "i", "Ö": "ö", "Ü": "ü"})


def cleaned(line: str, language: str) -> str:
    """Return a line in small letters; of English with numbers, abbreviations and symbols as words."""
    line = line.replace('"', "")
    line = (line.translate(TURKISH) if language == "tr" else line).lower()
    if language == ENGLISH:
        line = with_spoken_symbols(with_spoken_abbreviations(with_spoken_numbers(line)))
    return BLANKS.sub(" ", line)


def language_of(line: str) -> tuple[str, str]:
    """Return the language that a line's mark names, English without one, and the line behind the mark."""
    if line.startswith("[") and line[3:4] == "]" and line[1:3].lower() in LANGUAGES:
        return line[1:3].lower(), line[MARK_LENGTH:]
    return ENGLISH, line


class LyricsVocabulary:
    """A tokenizer of lyrics, of a serialised tokenizer of the tokenizers library."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Return the tokens of all lines, each with a token for its end."""
        return [token for line in text.split("\n") for token in self._line(line.strip())]

    def piece(self, token: int) -> str:
        return str(self._tokenizer.id_to_token(token))

    def tokens_by_piece(self) -> dict[str, int]:
        return dict(self._tokenizer.get_vocab())

    def _line(self, line: str) -> list[int]:
        if not line:
            return [LINE_END]
        language, line = language_of(line)
        latin = romanised(line)
        language = JAPANESE if latin != line else language
        language = ENGLISH if SECTION.match(latin) else language
        marked = f"[{MARKED.get(language, language)}]{cleaned(latin, language)}".replace(" ", SPACE)
        return [*self._tokenizer.encode(marked).ids, LINE_END]


@lru_cache(maxsize=2)
def lyrics_vocabulary(content: bytes) -> LyricsVocabulary:
    """Return the tokenizer of a serialised one, built once for the latest ones. Raises ValueError for another file."""
    from tokenizers import Tokenizer  # for lyrics alone

    try:
        return LyricsVocabulary(Tokenizer.from_buffer(content))
    except Exception as error:  # noqa: BLE001 - the library raises plain exceptions of its own
        raise ValueError(f"lyrics: their tokenizer cannot be read ({error}); expected ACE-Step's vocab.json") from error


def letter_lyrics() -> bytes:
    """Return a serialised tokenizer that reads lyrics letter by letter, for models with random weights."""
    marks = {"[STOP]": 0, UNKNOWN: 1, SPACE: 2, "[START]": START_TOKEN}
    marks |= {f"[{MARKED.get(name, name)}]": 270 + index for index, name in enumerate(sorted(LANGUAGES))}
    letters = {chr(code): 14 + index for index, code in enumerate(range(33, 127))}
    letters |= {letter: 120 + index for index, letter in enumerate(FURTHER_LETTERS)}
    added = [
        {
            "id": number, "content": mark, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False,
        }
        for mark, number in marks.items()
    ]  # fmt: skip
    model: dict[str, object] = {
        "type": "BPE", "dropout": None, "unk_token": UNKNOWN, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "vocab": marks | letters, "merges": [],
    }  # fmt: skip
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None, "model": model,
    }  # fmt: skip
    return json.dumps(tokenizer, ensure_ascii=False).encode()
