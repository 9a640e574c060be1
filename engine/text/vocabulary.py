"""The interface of tokenizers of texts, and those of the tokenizers library, which is imported at the first prompt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol


class TextVocabulary(Protocol):
    """A tokenizer of texts without special tokens."""

    def encode(self, text: str) -> list[int]: ...

    def piece(self, token: int) -> str: ...

    def tokens_by_piece(self) -> dict[str, int]: ...


class LibraryVocabulary:
    """A tokenizer of the tokenizers library."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def piece(self, token: int) -> str:
        return str(self._tokenizer.id_to_token(token))

    def tokens_by_piece(self) -> dict[str, int]:
        return dict(self._tokenizer.get_vocab())

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=skip_special_tokens))


@lru_cache(maxsize=2)
def stored_vocabulary(content: bytes) -> LibraryVocabulary:
    """Return the tokenizer of a `tokenizer.json`, built once for the latest ones. Raises ValueError."""
    from tokenizers import Tokenizer  # a prompt for another encoder does without it

    try:
        return LibraryVocabulary(Tokenizer.from_buffer(content))
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise ValueError(
            f"tokenizer: invalid tokenizer.json; got {len(content)} bytes, expected one of the tokenizers library"
        ) from error
