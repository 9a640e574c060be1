"""CLIP's byte-pair tokenizer (Sennrich et al. 2016, arXiv 1508.07909), and prompts with weights.

The merge table beside this file (`clip_merges.txt.gz`) is OpenAI's (github.com/openai/CLIP); its licence is stored next
to it. The vocabulary is derived from the table. It is loaded at the first prompt.
"""

from __future__ import annotations

import gzip
import heapq
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib import resources
from typing import Any

from darkroom.engine.text.chunk_tokens import Chunks, ChunkTokenizer, FindEmbedding, Weighted, Word
from darkroom.engine.text.clip_encoding import END_TOKEN, START_TOKEN
from darkroom.engine.text.tokenizer_members import EncoderTokenizer

START_TEXT, END_TEXT = "<|startoftext|>", "<|endoftext|>"
MAX_LENGTH = 77
KEPT_WORD_LENGTH, MAX_KEPT_WORDS = 64, 100_000  # of words already encoded
LONG_WORD = 8  # tokens from which a word may be broken between chunks
CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
SEPARATORS = "\x1c\x1d\x1e\x1f"  # control characters that are space to Python alone
LONG_RUN_OF_MARKS = re.compile(r"[^\w\s]{256}")  # or of punctuation, which it costs no more than time


def byte_letters() -> dict[int, str]:
    """Return a printable letter for each byte: itself where it is printable Latin-1, else one from 256 up."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    letters = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in letters)
    return letters | {byte: chr(256 + index) for index, byte in enumerate(others)}


class BytePairs:
    """Byte-pair encoder of words to token ids."""

    def __init__(self) -> None:
        self._letters = byte_letters()
        self._known: dict[str, tuple[int, ...]] = {}

    @cached_property
    def _merges(self) -> list[tuple[str, str]]:
        packed = resources.files("darkroom.engine.text").joinpath("clip_merges.txt.gz").read_bytes()
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

    @cached_property
    def _pieces_by_id(self) -> dict[int, str]:
        return {index: piece for piece, index in self.vocabulary.items()}

    def tokens_by_piece(self) -> dict[str, int]:
        return self.vocabulary

    def piece(self, token: int) -> str:
        """Return the piece of the vocabulary that a token stands for. Raises KeyError."""
        return self._pieces_by_id[token]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without start and end."""
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
            if len(word) <= KEPT_WORD_LENGTH and len(self._known) < MAX_KEPT_WORDS:
                self._known[word] = known
        return known

    def _pieces(self, word: str) -> list[str]:
        """Merge neighbours, the pair of the lowest rank everywhere from left to right, until no pair is in the table.

        A heap of pairs keeps the time near linear in the word. A pair that has changed since it was added is skipped.
        """
        letters = [self._letters[byte] for byte in word.encode("utf-8")]
        pieces: list[str] = [*letters[:-1], letters[-1] + "</w>"]  # "" where one was merged into the one before it
        following = [*range(1, len(pieces) + 1)]
        preceding = [*range(-1, len(pieces) - 1)]
        ranks = self._ranks

        def ranked(index: int) -> tuple[int, int, str, str] | None:
            if index < 0 or following[index] >= len(pieces):
                return None
            pair = pieces[index], pieces[following[index]]
            rank = ranks.get(pair)
            return None if rank is None else (rank, index, *pair)

        heap = [entry for index in range(len(pieces) - 1) if (entry := ranked(index)) is not None]
        heapq.heapify(heap)
        while heap:
            best = heap[0][0]
            changed: list[int] = []
            while heap and heap[0][0] == best:
                entry = heapq.heappop(heap)
                index = entry[1]
                if ranked(index) != entry:
                    continue
                gone = following[index]
                pieces[index] += pieces[gone]
                pieces[gone] = ""
                following[index] = following[gone]
                if following[index] < len(pieces):
                    preceding[following[index]] = index
                changed += (preceding[index], index)
            for index in dict.fromkeys(changed):
                if index >= 0 and pieces[index] and (found := ranked(index)) is not None:
                    heapq.heappush(heap, found)
        return [piece for piece in pieces if piece]


def clean(text: str) -> str:
    """Return a text in NFC and lower case, each letter by itself, as version 5 of the transformers library does."""
    return "".join(letter.lower() for letter in unicodedata.normalize("NFC", _with_marks_in_order(text)))


def _with_marks_in_order(text: str) -> str:
    """Put long runs of combining marks into canonical order: `normalize` takes time quadratic in a run that is not."""
    if text.isascii() or not LONG_RUN_OF_MARKS.search(text):
        return text
    decomposed = "".join(unicodedata.normalize("NFD", letter) for letter in text)
    ordered: list[str] = []
    for is_mark, letters in itertools.groupby(decomposed, key=lambda letter: unicodedata.combining(letter) != 0):
        run = list(letters)
        ordered.extend(sorted(run, key=unicodedata.combining) if is_mark else run)
    return "".join(ordered)


def split_words(text: str) -> Iterator[str]:
    """Split a text into contractions, runs of letters, single digits, and runs of anything else that is not space.

    The texts of the start and the end token, which come here from upper case alone, end a run.
    """
    index = 0
    while index < len(text):
        known = next((item for item in (START_TEXT, END_TEXT, *CONTRACTIONS) if text.startswith(item, index)), None)
        if known in (START_TEXT, END_TEXT):
            yield from (known[:2], known[2:-2], known[-2:])
            index += len(known)
            continue
        kind = _kind(text[index])
        end = index + 1
        if known is not None:
            end = index + len(known)
        elif kind in ("letter", "other"):
            while end < len(text) and _kind(text[end]) == kind:
                end += 1
        if kind != "space":
            yield text[index:end]
        index = end


def _kind(letter: str) -> str:
    if letter.isspace() and letter not in SEPARATORS:
        return "space"
    category = unicodedata.category(letter)
    return {"L": "letter", "N": "digit"}.get(category[0], "other")


# --- chunks ----------------------------------------------------------------------------------------------------------


class ClipTokenizer(ChunkTokenizer):
    """Prompts -> chunks of 77 tokens with weights, for the encoder of one slot.

    Everything between two embeddings stays in one chunk if it is short. `pad_token` fills a chunk behind the end token;
    None is the end token.
    """

    fills_chunks = True
    max_length = MAX_LENGTH

    def __init__(
        self,
        find_embedding: FindEmbedding | None = None,
        *,
        slot: str = "l",
        pad_token: int | None = None,
        pairs: BytePairs | None = None,
    ) -> None:
        self.pairs = BytePairs() if pairs is None else pairs
        super().__init__(
            find_embedding,
            slot=slot,
            vocabulary=lambda: self.pairs,
            pad_token=END_TOKEN if pad_token is None else pad_token,
            start_token=START_TOKEN,
            end_token=END_TOKEN,
            min_length=self.max_length,
        )

    @property
    def key(self) -> str:
        """ComfyUI's name of the encoder."""
        return f"clip_{self.slot}"

    def _chunks(self, words: Sequence[Word], min_padding: int, min_length: int) -> list[list[Weighted]]:
        end: Weighted = (END_TOKEN, 1.0, 0)
        pad: Weighted = (self.pad_token, 1.0, 0)
        chunk = self._started()
        chunks = [chunk]
        for number, word in enumerate(words, start=1):
            rest: list[Weighted] = [(token, weight, number) for token, weight in word]
            is_long = len(rest) >= LONG_WORD
            while rest:
                room = self.max_length - len(chunk) - 1
                if len(rest) <= room:
                    chunk.extend(rest)
                    break
                if is_long:
                    chunk.extend([*rest[:room], end])
                    rest = rest[room:]
                else:
                    chunk.extend([end, *[pad] * room])
                chunk = self._started()
                chunks.append(chunk)
        self._end(chunk, min_padding, max(self.max_length, min_length))
        return chunks


class TokenizerSet:
    """The tokenizers of a model's text encoders, each an attribute of its `key` (`clip_l`), as in ComfyUI."""

    def __init__(self, tokenizers: Sequence[Any]) -> None:
        self._tokenizers = tuple(tokenizers)
        for tokenizer in tokenizers:
            setattr(self, tokenizer.key, EncoderTokenizer(tokenizer))

    @property
    def clip(self) -> str:
        """ComfyUI's name of the first tokenizer."""
        key: str = self._tokenizers[0].key
        return key

    @property
    def clip_name(self) -> str:
        """The slot of the first tokenizer."""
        slot: str = self._tokenizers[0].slot
        return slot

    def tokenize_with_weights(self, text: str, return_word_ids: bool = False, **kwargs: object) -> Chunks:
        """Return the chunks of every encoder by slot, as `ClipTokenizer.tokenize_with_weights`."""
        chunks: Chunks = {}
        for tokenizer in self._tokenizers:
            chunks |= tokenizer.tokenize_with_weights(text, return_word_ids, **kwargs)
        return chunks

    def untokenize(self, token_weight_pair: list[object]) -> list[tuple[object, str]]:
        pieces: list[tuple[Any, str]] = self._tokenizers[0].untokenize(token_weight_pair)
        return pieces

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of tokens of the first tokenizer, as `QwenTokenizer.decode`."""
        text: str = self._tokenizers[0].decode(tokens, skip_special_tokens)
        return text

    def state_dict(self) -> dict[str, Any]:
        return {}
