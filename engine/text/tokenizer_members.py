"""One tokenizer of a set with the members that ComfyUI's have, for code that takes it by itself.

ComfyUI's `SDTokenizer` (`comfy/sd1_clip.py`) returns the chunks of its encoder alone, as a list, and holds a tokenizer
of the transformers library; the engine's return chunks by slot.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from typing import Any

from darkroom.engine.text.chunk_tokens import EMBEDDING_PREFIX
from darkroom.engine.text.encoder_members import CLIP_LENGTH

MAX_WORD_LENGTH = 8  # tokens of a word that is still kept in one chunk
UNBOUNDED = 99_999_999  # the length of a chunk of encoders that take any


class PlainTokenizer:
    """A tokenizer of texts in the form of the transformers library's: with start and end token, without weights."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str | Sequence[str], **options: object) -> dict[str, Any]:
        """Return `input_ids` and `attention_mask` of a text, or lists of them of several."""
        several = [self.encode(text)] if isinstance(text, str) else [self.encode(item) for item in text]
        masks = [[1] * len(ids) for ids in several]
        is_one = isinstance(text, str)
        return {"input_ids": several[0] if is_one else several, "attention_mask": masks[0] if is_one else masks}

    def encode(self, text: str, add_special_tokens: bool = True, **options: object) -> list[int]:
        ids: list[int] = self._tokenizer.vocabulary().encode(text)
        if not add_special_tokens:
            return ids
        start, end = self._tokenizer.start_token, self._tokenizer.end_token
        return [*([] if start is None else [start]), *ids, *([] if end is None else [end])]

    def tokenize(self, text: str, **options: object) -> list[str]:
        return [self.convert_ids_to_tokens(token) for token in self.encode(text, add_special_tokens=False)]

    def get_vocab(self) -> dict[str, int]:
        """Return the tokens by their pieces."""
        return dict(self._tokenizer.vocabulary().tokens_by_piece())

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        piece = self._tokenizer.vocabulary().piece
        return piece(ids) if isinstance(ids, int) else [piece(token) for token in ids]

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        known = self.get_vocab()
        return known.get(tokens) if isinstance(tokens, str) else [known.get(token) for token in tokens]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False, **options: object) -> str:
        """Return the text of tokens; of byte pairs as CLIP's tokenizer spells it, in small letters."""
        vocabulary = self._tokenizer.vocabulary()
        special = {self._tokenizer.start_token, self._tokenizer.end_token, self._tokenizer.pad_token}
        kept = [token for token in token_ids if not (skip_special_tokens and token in special)]
        if hasattr(vocabulary, "decode"):
            return str(vocabulary.decode(kept, skip_special_tokens=skip_special_tokens))
        pieces = "".join(str(vocabulary.piece(token)) for token in kept)
        return pieces.replace("</w>", " ").replace("\u2581", " ").strip()

    def __len__(self) -> int:
        return len(self.get_vocab())

    @property
    def vocab_size(self) -> int:
        return len(self)

    @property
    def bos_token_id(self) -> int | None:
        start: int | None = self._tokenizer.start_token
        return start

    @property
    def eos_token_id(self) -> int | None:
        end: int | None = self._tokenizer.end_token
        return end

    @property
    def pad_token_id(self) -> int:
        pad: int = self._tokenizer.pad_token
        return pad


class EncoderTokenizer:
    """A tokenizer of a set (`clip.tokenizer.clip_l`), with ComfyUI's members. What is set on it holds for the set."""

    _tokenizer: Any

    def __init__(self, tokenizer: Any) -> None:
        object.__setattr__(self, "_tokenizer", tokenizer)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_tokenizer"), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._tokenizer, name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._tokenizer)})

    def tokenize_with_weights(self, text: str, return_word_ids: bool = False, **options: Any) -> list[list[Any]]:
        """Return the encoder's chunks of (token, weight), or (token, weight, word id)."""
        chunks: list[list[Any]] = self._tokenizer.tokenize_with_weights(text, return_word_ids, **options)[
            self._tokenizer.slot
        ]
        return chunks

    @property
    def tokenizer(self) -> PlainTokenizer:
        return PlainTokenizer(self._tokenizer)

    @property
    def inv_vocab(self) -> dict[int, str]:
        """The pieces of the vocabulary by token."""
        return {token: piece for piece, token in self._tokenizer.vocabulary().tokens_by_piece().items()}

    @property
    def pad_to_max_length(self) -> bool:
        """True if every chunk is as long as `max_length`."""
        return bool(getattr(self._tokenizer, "fills_chunks", False))

    @property
    def max_length(self) -> int:
        """The tokens of a chunk."""
        return CLIP_LENGTH if self.pad_to_max_length else UNBOUNDED

    @property
    def min_length(self) -> int | None:
        return None if self.pad_to_max_length else self._tokenizer.min_length

    @property
    def min_padding(self) -> int | None:
        return None

    @property
    def tokens_start(self) -> int:
        """The tokens before those of the text."""
        return 0 if self._tokenizer.start_token is None else 1

    @property
    def tokenizer_adds_end_token(self) -> bool:
        return self._tokenizer.end_token is not None

    @property
    def pad_with_end(self) -> bool:
        return bool(self._tokenizer.pad_token == self._tokenizer.end_token)

    @property
    def pad_left(self) -> bool:
        return False

    @property
    def disable_weights(self) -> bool:
        """True if brackets are text; nodes say so for each prompt."""
        return False

    @property
    def max_word_length(self) -> int:
        return MAX_WORD_LENGTH

    @property
    def embedding_identifier(self) -> str:
        return EMBEDDING_PREFIX

    @property
    def embedding_key(self) -> str:
        key: str = self._tokenizer.key
        return key

    @property
    def embedding_size(self) -> int | None:
        """The width of the textual inversions, None where there are none."""
        width: int | None = getattr(self._tokenizer.find_embedding, "width", None)
        return width

    @property
    def embedding_directory(self) -> list[str] | None:
        """The folders of the textual inversions, None where there are none."""
        roots = getattr(self._tokenizer.find_embedding, "roots", None)
        return None if roots is None else [str(path) for path in roots()]

    def _try_get_embedding(self, embedding_name: str) -> tuple[Any, str, str]:
        """Return the rows of an embedding or None, its name, and the text behind the name."""
        name = embedding_name.split()[0] if embedding_name.split() else ""
        if self._tokenizer.find_embedding is None:
            return None, name, ""
        rows, leftover = self._tokenizer.find_embedding(embedding_name)
        return rows, name, leftover

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens)

    def pad_tokens(self, tokens: MutableSequence[Any], amount: int) -> None:
        """Put padding behind tokens with weights and word ids."""
        tokens.extend([(self._tokenizer.pad_token, 1.0, 0)] * amount)

    def state_dict(self) -> Mapping[str, object]:
        saved: Mapping[str, object] = self._tokenizer.state_dict()
        return saved
