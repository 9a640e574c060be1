"""Base of the tokenizers: prompts with weights and textual inversions -> chunks of tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from darkroom.engine.text.prompt_weights import parse_weights, unescaped
from darkroom.engine.text.vocabulary import TextVocabulary

FindEmbedding = Callable[[str], tuple[Any, str]]  # name -> (tensor [n, D] or [D] or None, text left over)
TokenizerOptions = Mapping[str, Any]  # shortest and longest chunks by key, and what packs add
Chunks = dict[str, list[list[Any]]]  # slot of an encoder -> chunks of (token, weight)
Word = Sequence[tuple[Any, float]]  # tokens or embedding rows with their weights
Weighted = tuple[Any, float, int]  # token id or embedding row, weight, word id (0: none)

EMBEDDING_PREFIX = "embedding:"
EMBEDDING_STARTS = re.compile(rf"(?<=\s)(?={EMBEDDING_PREFIX})")


def cut_at_embeddings(text: str) -> list[str]:
    """Return the parts of a text, cut where names of embeddings may begin: behind white space, which stays."""
    return [part for part in EMBEDDING_STARTS.split(text) if part]


class ChunkTokenizer:
    """Prompts -> one chunk of tokens with weights, as long as the prompt, for the encoder of one slot.

    A chunk begins with `start_token` and ends with `end_token`, where there are such, and is filled up to `min_length`
    with `pad_token`. `find_embedding` looks up what stands after `embedding:`; without it the words are ordinary text.
    `vocabulary` is called at the first prompt. `fills_chunks` is True where every chunk has one length.
    """

    fills_chunks = False

    def __init__(
        self,
        find_embedding: FindEmbedding | None,
        *,
        slot: str,
        vocabulary: Callable[[], TextVocabulary],
        pad_token: int,
        start_token: int | None = None,
        end_token: int | None = None,
        min_length: int = 0,
    ) -> None:
        self.find_embedding = find_embedding
        self.slot = slot
        self.vocabulary = vocabulary
        self.pad_token = pad_token
        self.start_token = start_token
        self.end_token = end_token
        self.min_length = min_length

    @property
    def key(self) -> str:
        """ComfyUI's name of the encoder."""
        return self.slot

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: TokenizerOptions | None = None,
        disable_weights: bool = False,
        **kwargs: Any,
    ) -> Chunks:
        """Return the chunks by slot (`{"t5xxl": [chunk]}`), of (token, weight), or (token, weight, word id).

        Options as nodes set them, behind the encoder's key: `t5xxl_min_length`, `t5xxl_min_padding` (tokens of padding
        at the end). With `disable_weights` brackets are text. Raises PromptTooDeep.
        """
        options = tokenizer_options or {}
        parts = [(unescaped(text), 1.0)] if disable_weights else parse_weights(text)
        words = [word for part, weight in parts for word in self._words(part, weight)]
        min_length = options.get(f"{self.key}_min_length")
        chunks = self._chunks(
            words, options.get(f"{self.key}_min_padding") or 0, self.min_length if min_length is None else min_length
        )
        if return_word_ids:
            return {self.slot: [list(chunk) for chunk in chunks]}
        return {self.slot: [[(token, weight) for token, weight, _ in chunk] for chunk in chunks]}

    def untokenize(self, token_weight_pair: Sequence[Any]) -> list[tuple[Any, str]]:
        """Return each token, with its weight, beside its piece of the vocabulary."""
        vocabulary = self.vocabulary()
        return [(pair, vocabulary.piece(pair[0])) for pair in token_weight_pair]

    def state_dict(self) -> dict[str, object]:
        """Return the state of the tokenizer to save: empty."""
        return {}

    def _words(self, part: str, weight: float) -> Iterator[Word]:
        """Yield the tokens of embeddings and of the text between them."""
        for piece in cut_at_embeddings(part):
            text = piece
            if piece.startswith(EMBEDDING_PREFIX) and self.find_embedding is not None:
                rows, text = self.find_embedding(piece[len(EMBEDDING_PREFIX) :].strip("\n"))
                if rows is not None:
                    yield [(row, weight) for row in (rows.unsqueeze(0) if rows.ndim == 1 else rows)]
            if text:
                yield [(token, weight) for token in self._encoded(text)]

    def _encoded(self, text: str) -> Sequence[int]:
        """Return the tokens of a text that names no embedding."""
        return self.vocabulary().encode(text)

    def _chunks(self, words: Sequence[Word], min_padding: int, min_length: int) -> list[list[Weighted]]:
        """Return the words as chunks; the last has at least so many tokens, and of padding behind the prompt."""
        chunk = self._started()
        chunk.extend((token, weight, number) for number, word in enumerate(words, start=1) for token, weight in word)
        self._end(chunk, min_padding, min_length)
        return [chunk]

    def _started(self) -> list[Weighted]:
        """Return a chunk with its start token alone."""
        return [] if self.start_token is None else [(self.start_token, 1.0, 0)]

    def _end(self, chunk: list[Weighted], min_padding: int, min_length: int) -> None:
        """Add the end token and the padding to a chunk."""
        pad: Weighted = (self.pad_token, 1.0, 0)
        if self.end_token is not None:
            chunk.append((self.end_token, 1.0, 0))
        chunk.extend([pad] * min_padding)
        chunk.extend([pad] * (min_length - len(chunk)))
