"""The text encoder of ERNIE-Image: the last layer but one of Ministral 3B. It writes text too."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from darkroom.engine.families.base import Shapes, TextEncoder, TokenizerParts, Vocabulary
from darkroom.engine.families.text.language_model import fits_kind, language_text_encoder
from darkroom.engine.layers.language_model import EMBEDDING, LLAMA3, MINISTRAL3, LanguageModelConfig
from darkroom.engine.layers.shapes import count_children
from darkroom.engine.text.chunk_tokens import FindEmbedding
from darkroom.engine.text.language_encoding import LanguageEncoder, LanguageEncoding
from darkroom.engine.text.language_tokens import LanguageTokenizer
from darkroom.engine.text.tekken_tokens import END_TOKEN, START_TOKEN, UNKNOWN_TOKEN, byte_tekken, tekken_vocabulary

SLOT = "ministral3_3b"
HIDDEN_SIZE = 3072
NUM_LAYERS = 26
OTHER_LEAST_LAYERS = 30  # of models of the same kind that other networks read
TOKENIZER = "tekken_model"


@dataclass(frozen=True, slots=True)
class MinistralEncoding(LanguageEncoding):
    """Settings of a language model that predicts tokens with the table of its embedding."""

    writes_text: bool = True


class MinistralEncoder(LanguageEncoder):
    """Ministral, which encodes a prompt or writes what follows it."""

    vocabulary: bytes  # of the tokenizer, as the file has it
    end_tokens = (END_TOKEN,)  # behind which a written text is over

    def written(self, chunk: Sequence[Any]) -> Generator[torch.Tensor, int, None]:
        """Yield the scores [1, V] of the token that follows, and take it; each is seen by those behind it."""
        rows, _ = self._embed(chunk)
        model = self.transformer.model
        past = model.empty_past()
        while True:
            *_, last = model.states(rows[None], past=past)
            table = model.embed_tokens.weight
            token = yield functional.linear(model.norm(last[:, -1]), table.to(last))
            rows = model.embed_tokens(torch.tensor([token], device=rows.device)).to(rows)


class MinistralTokenizer(LanguageTokenizer):
    """Prompts -> one chunk of tokens behind a start token. Brackets are text: every weight is 1.

    `tekken` is the content of the tokenizer's file.
    """

    def __init__(self, find_embedding: FindEmbedding, *, encoding: LanguageEncoding, tekken: bytes) -> None:
        super().__init__(find_embedding, encoding=encoding, vocabulary=partial(tekken_vocabulary, tekken))
        self.tekken = tekken

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of tokens, without marks unless `skip_special_tokens` is False."""
        vocabulary = tekken_vocabulary(self.tekken)
        return vocabulary.decode(tokens, skip_special_tokens=skip_special_tokens)


def fits(shapes: Shapes) -> bool:
    """Return True for a model of Llama's kind of this hidden size, or of fewer layers than those others read."""
    if not fits_kind(shapes, kind=LLAMA3):
        return False
    return shapes[EMBEDDING][1] == HIDDEN_SIZE or count_children(shapes, "model.layers") < OTHER_LEAST_LAYERS


def _tokenizer(encoder: MinistralEncoder, parts: TokenizerParts) -> MinistralTokenizer:
    find_embedding = parts.find_embedding(encoder.encoding)
    return MinistralTokenizer(find_embedding, encoding=encoder.encoding, tekken=encoder.vocabulary)


def _size(
    *, hidden_size: int, heads: int, key_heads: int, intermediate_size: int, num_tokens: int
) -> LanguageModelConfig:
    return LanguageModelConfig(
        kind=MINISTRAL3, num_layers=NUM_LAYERS, width=hidden_size, heads=heads, key_heads=key_heads,
        inner_width=intermediate_size, vocabulary_size=num_tokens,
    )  # fmt: skip


MINISTRAL: TextEncoder = replace(
    language_text_encoder(
        MinistralEncoding(
            slot=SLOT, embedding_width=HIDDEN_SIZE, layer=-2, start_token=START_TOKEN, pad_token=UNKNOWN_TOKEN,
            takes_weights=False, takes_embeddings=True,
        ),
        kind=MINISTRAL3, fits=fits, encoder_type=MinistralEncoder,
        sizes={
            "full": _size(
                hidden_size=HIDDEN_SIZE, heads=32, key_heads=8, intermediate_size=9216, num_tokens=131072
            ),
            "small": _size(hidden_size=48, heads=2, key_heads=1, intermediate_size=96, num_tokens=512),
        },
    ),
    tokenizer=_tokenizer,
    vocabulary=Vocabulary(names=(TOKENIZER,), in_checkpoint=f"text_encoders.{TOKENIZER}", random=byte_tekken),
)  # fmt: skip
