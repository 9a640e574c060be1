"""CLIP's byte-pair tokenizer (Sennrich et al. 2016, arXiv 1508.07909), and prompts with weights on it.

The merge table beside this file (`clip_merges.txt.gz`) is OpenAI's (github.com/openai/CLIP); its licence lies with it.
The vocabulary follows from it. It is read when the first prompt comes.
"""

from __future__ import annotations

import gzip
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import resources
from typing import Any

START_TEXT, END_TEXT = "<|startoftext|>", "<|endoftext|>"
MAX_LENGTH = 77
LONG_WORD = 8  # tokens from which a word may be broken between chunks
CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
EMBEDDING_PREFIX = "embedding:"

# The blocks whose ideographs stand for a word each.
IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


def _byte_letters() -> dict[int, str]:
    """A printable letter for each byte: itself where it is printable Latin-1, else one from 256 up."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    letters = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in letters)
    return letters | {byte: chr(256 + index) for index, byte in enumerate(others)}


class BytePairs:
    """Words -> token ids."""

    def __init__(self) -> None:
        self._letters = _byte_letters()
        self._known: dict[str, tuple[int, ...]] = {}

    @cached_property
    def _merges(self) -> list[tuple[str, str]]:
        packed = resources.files("engine.models").joinpath("clip_merges.txt.gz").read_bytes()
        lines = gzip.decompress(packed).decode("utf-8").splitlines()
        return [(first, second) for first, _, second in (line.partition(" ") for line in lines)]

    @cached_property
    def _ranks(self) -> dict[tuple[str, str], int]:
        return {pair: rank for rank, pair in enumerate(self._merges)}

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        letters = list(self._letters.values())
        pieces = [*letters, *(letter + "</w>" for letter in letters), *(a + b for a, b in self._merges)]
        return {piece: index for index, piece in enumerate([*pieces, START_TEXT, END_TEXT])}

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without start and end."""
        ids: list[int] = []
        for part in re.split(r"(<\|startoftext\|>|<\|endoftext\|>)", text):
            if part in (START_TEXT, END_TEXT):
                ids.append(self.vocabulary[part])
            else:
                ids.extend(token for word in split_words(clean(part)) for token in self._word(word))
        return ids

    def _word(self, word: str) -> tuple[int, ...]:
        known = self._known.get(word)
        if known is None:
            known = tuple(self.vocabulary[piece] for piece in self._pieces(word))
            self._known[word] = known
        return known

    def _pieces(self, word: str) -> list[str]:
        letters = [self._letters[byte] for byte in word.encode("utf-8")]
        pieces = [*letters[:-1], letters[-1] + "</w>"]
        while len(pieces) > 1:
            pairs = list(zip(pieces, pieces[1:], strict=False))
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            pieces = list(_merged(pieces, best))
        return pieces


def _merged(pieces: list[str], pair: tuple[str, str]) -> Iterator[str]:
    index = 0
    while index < len(pieces):
        if index + 1 < len(pieces) and (pieces[index], pieces[index + 1]) == pair:
            yield pair[0] + pair[1]
            index += 2
        else:
            yield pieces[index]
            index += 1


def clean(text: str) -> str:
    """As the original tokenizer's basic cleaning: control characters out, ideographs apart, NFC, lower case."""
    kept = []
    for letter in text:
        if letter.isspace() or unicodedata.category(letter) == "Zs":
            kept.append(" ")
        elif letter in ("\0", "\ufffd") or unicodedata.category(letter).startswith("C"):
            continue
        elif any(low <= ord(letter) <= high for low, high in IDEOGRAPHS):
            kept.append(f" {letter} ")
        else:
            kept.append(letter)
    return " ".join(unicodedata.normalize("NFC", "".join(kept)).split()).lower()


def split_words(text: str) -> Iterator[str]:
    """Contractions, runs of letters, single digits, and runs of anything else that is not space."""
    index = 0
    while index < len(text):
        contraction = next((item for item in CONTRACTIONS if text.startswith(item, index)), None)
        kind = _kind(text[index])
        end = index + 1
        if contraction is not None:
            end = index + len(contraction)
        elif kind in ("letter", "other"):
            while end < len(text) and _kind(text[end]) == kind:
                end += 1
        if kind != "space":
            yield text[index:end]
        index = end


def _kind(letter: str) -> str:
    if letter.isspace():
        return "space"
    category = unicodedata.category(letter)
    return {"L": "letter", "N": "digit"}.get(category[0], "other")


# --- weights ---------------------------------------------------------------------------------------------------------


def parse_weights(text: str) -> list[tuple[str, float]]:
    """Parts of a prompt with their weights: `(a)` weighs 1.1 times its surroundings, `(a:1.3)` weighs 1.3.

    Backslashes make brackets plain text. A closing bracket too many is text; an opening one too many too.
    """
    hidden = text.replace("\\)", "\0\1").replace("\\(", "\0\2")
    return [(part.replace("\0\1", ")").replace("\0\2", "("), weight) for part, weight in _weighted(hidden, 1.0)]


def _weighted(text: str, weight: float) -> Iterator[tuple[str, float]]:
    for part in _top_level_parts(text):
        if len(part) < 2 or part[0] != "(" or part[-1] != ")":
            yield part, weight
            continue
        inner, inner_weight = part[1:-1], weight * 1.1
        colon = inner.rfind(":")
        if colon > 0:
            try:
                inner_weight = float(inner[colon + 1 :])
                inner = inner[:colon]
            except ValueError:
                pass  # not a number: the colon is text
        yield from _weighted(inner, inner_weight)


def _top_level_parts(text: str) -> Iterator[str]:
    """The text cut before each outermost bracket and after it. Depth may fall below zero, as in ComfyUI."""
    current, depth = "", 0
    for letter in text:
        if letter == "(":
            if depth == 0 and current:
                yield current
                current = ""
            current += letter
            depth += 1
        elif letter == ")":
            depth -= 1
            current += letter
            if depth == 0:
                yield current
                current = ""
        else:
            current += letter
    if current:
        yield current


# --- chunks ----------------------------------------------------------------------------------------------------------

FindEmbedding = Callable[[str], tuple[Any, str]]  # name -> (tensor [n, D] or [D] or None, text left over)
Weighted = tuple[Any, float, int]  # token id or embedding row, weight, word id (0: none)


class ClipTokenizer:
    """Prompts -> chunks of 77 tokens with weights.

    `find_embedding` looks up what stands after `embedding:`; without it the words are ordinary text.
    """

    def __init__(self, find_embedding: FindEmbedding | None = None) -> None:
        self.pairs = BytePairs()
        self.find_embedding = find_embedding

    @property
    def start_token(self) -> int:
        return self.pairs.vocabulary[START_TEXT]

    @property
    def end_token(self) -> int:
        return self.pairs.vocabulary[END_TEXT]

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: dict[str, Any] | None = None,
        disable_weights: bool = False,
        **kwargs: Any,
    ) -> dict[str, list[list[Any]]]:
        """`{"l": chunks}`, each 77 of (token, weight), or (token, weight, word id).

        Options as custom nodes set them: `clip_l_min_length`, `clip_l_min_padding` (tokens of padding at the end).
        """
        options = tokenizer_options or {}
        parts = [(text, 1.0)] if disable_weights else parse_weights(text)
        words = [word for part, weight in parts for word in self._words(part, weight)]
        chunks = self._chunks(words, options.get("clip_l_min_padding"), options.get("clip_l_min_length"))
        if return_word_ids:
            return {"l": [list(chunk) for chunk in chunks]}
        return {"l": [[(token, weight) for token, weight, _ in chunk] for chunk in chunks]}

    def untokenize(self, token_weight_pair: list[Any]) -> list[tuple[Any, str]]:
        names = {index: piece for piece, index in self.pairs.vocabulary.items()}
        return [(pair, names[pair[0]]) for pair in token_weight_pair]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def _words(self, part: str, weight: float) -> Iterator[list[tuple[Any, float]]]:
        """Groups of tokens that should stay in one chunk: here everything between two embeddings."""
        pieces = re.split(rf" {EMBEDDING_PREFIX}|\n{EMBEDDING_PREFIX}", part)
        for piece in [pieces[0], *(EMBEDDING_PREFIX + piece for piece in pieces[1:])]:
            text = piece
            if piece.startswith(EMBEDDING_PREFIX) and self.find_embedding is not None:
                rows, text = self.find_embedding(piece[len(EMBEDDING_PREFIX) :].strip("\n"))
                if rows is not None:
                    yield [(row, weight) for row in (rows.unsqueeze(0) if rows.ndim == 1 else rows)]
            if text:
                yield [(token, weight) for token in self.pairs.encode(text)]

    def _chunks(
        self, words: list[list[tuple[Any, float]]], min_padding: int | None, min_length: int | None
    ) -> list[list[Weighted]]:
        start: Weighted = (self.start_token, 1.0, 0)
        end: Weighted = (self.end_token, 1.0, 0)
        chunk = [start]
        chunks = [chunk]
        for number, word in enumerate(words, start=1):
            rest: list[Weighted] = [(token, weight, number) for token, weight in word]
            is_long = len(rest) >= LONG_WORD
            while rest:
                room = MAX_LENGTH - len(chunk) - 1
                if len(rest) <= room:
                    chunk.extend(rest)
                    break
                if is_long:
                    chunk.extend([*rest[:room], end])
                    rest = rest[room:]
                else:
                    chunk.extend([end] * (room + 1))
                chunk = [start]
                chunks.append(chunk)
        chunk.extend([end] * (1 + (min_padding or 0)))
        chunk.extend([end] * (max(MAX_LENGTH, min_length or 0) - len(chunk)))
        return chunks
