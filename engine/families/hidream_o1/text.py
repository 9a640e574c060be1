"""The text of HiDream-O1: the numbers of its tokens, which the network itself reads. There is no text encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from darkroom.engine.families.base import Network, Shapes, TextEncoder, TokenizerParts
from darkroom.engine.families.hidream_o1.transformer import MARK
from darkroom.engine.families.layouts import saved_behind
from darkroom.engine.families.transformer_files import PREFIXES
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.text.chunk_encoding import Encoded, TokenEncoder, TokenWeights, numbers_of
from darkroom.engine.text.chunk_tokens import Chunks, ChunkTokenizer, TokenizerOptions
from darkroom.engine.text.language_encoding import LanguageEncoding
from darkroom.engine.text.qwen_tokens import (
    END_TOKEN,
    NEW_LINE_TOKEN,
    PAD_TOKEN,
    START_TOKEN,
    USER_TOKEN,
    qwen_vocabulary,
)

SLOT = "hidream_o1"
PREFIX = f"text_encoders.{SLOT}."
TEXT_TOKENS = "text_input_ids"  # of a conditioning: the numbers of tokens [1, L]
NUMBERS_TEXT = "numbers_text"  # the only tensor of a saved text encoder, by which it is known
ASSISTANT_TOKEN, IMAGE_BEGIN_TOKEN, TIME_TOKEN = 77091, 151669, 151673
BEGINNING = (START_TOKEN, USER_TOKEN, NEW_LINE_TOKEN)
ENDING = (
    END_TOKEN, NEW_LINE_TOKEN, START_TOKEN, ASSISTANT_TOKEN, NEW_LINE_TOKEN, IMAGE_BEGIN_TOKEN, TIME_TOKEN,
)  # fmt: skip


class NumbersConfig:
    """Configuration of the network: there is nothing to configure."""

    width = 1  # of a conditioning

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumbersConfig)

    def __hash__(self) -> int:
        return hash(NumbersConfig)


class Numbers(nn.Module):
    """A network without layers; its only weight is a mark in files."""

    num_layers = 0

    def __init__(self, config: NumbersConfig) -> None:
        super().__init__()
        self.config = config
        self.numbers_text = nn.Parameter(torch.ones(()), requires_grad=False)


class NumbersEncoder(TokenEncoder):
    """An encoder that returns the numbers of tokens."""

    encoding: LanguageEncoding

    def encode_weighted(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return the numbers [1, L, 1] of the first chunk's tokens as conditioning, and as its option."""
        numbers = torch.tensor([numbers_of([token[0] for token in chunks[0]])])
        return Encoded(numbers[..., None].float(), None, {TEXT_TOKENS: numbers})


class NumbersTokenizer(ChunkTokenizer):
    """Prompts -> one chunk of Qwen's tokens in the turns of a chat, the last of which begins an image.

    Brackets are text: every weight is 1.
    """

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: TokenizerOptions | None = None,
        disable_weights: bool = True,
        **kwargs: object,
    ) -> Chunks:
        """Return the chunk by slot, as `ChunkTokenizer.tokenize_with_weights`, whatever `disable_weights` is."""
        chunks = super().tokenize_with_weights(text, return_word_ids, tokenizer_options, disable_weights=True)
        words = [token for token in chunks[self.slot][0] if token[0] != PAD_TOKEN]
        before, behind = (
            [(number, 1.0, 0) if return_word_ids else (number, 1.0) for number in numbers]
            for numbers in (BEGINNING, ENDING)
        )
        return {self.slot: [[*before, *words, *behind]]}


def _tokenizer(encoder: NumbersEncoder, parts: TokenizerParts) -> NumbersTokenizer:
    return NumbersTokenizer(None, slot=SLOT, vocabulary=qwen_vocabulary, pad_token=PAD_TOKEN, min_length=1)


def marked(mark: str, prefixes: Sequence[str]) -> Callable[[Shapes], Names | None]:
    """Return the layout of files that have a mark behind one of these prefixes."""

    def layout(shapes: Shapes) -> Names | None:
        found = next((prefix + mark for prefix in prefixes if prefix + mark in shapes), None)
        return None if found is None else {mark: found}

    return layout


def without_mark(shapes: Shapes) -> Names | None:
    """Return the names of a network that files of HiDream-O1's network leave out, as it has none; None for others."""
    return {} if any(prefix + MARK in shapes for prefix in (*PREFIXES, "model.")) else None


def _no_lora_keys(weight_names: Iterable[str]) -> dict[str, str]:
    return {}


def _configure(shapes: Shapes) -> Any:
    return NumbersConfig()


NUMBERS = TextEncoder(
    encoding=LanguageEncoding(slot=SLOT, embedding_width=1, pad_token=PAD_TOKEN, takes_weights=False),
    network=Network(
        layouts=(marked(NUMBERS_TEXT, (PREFIX, "")),),
        in_checkpoint=(marked(NUMBERS_TEXT, (PREFIX,)), without_mark),
        configure=_configure,
        build=Numbers,
        saved=partial(saved_behind, PREFIX),
        defaults={NUMBERS_TEXT: torch.ones},
        sizes=dict.fromkeys(("full", "small"), NumbersConfig()),
    ),
    fits=lambda shapes: NUMBERS_TEXT in shapes,
    lora_keys=_no_lora_keys,
    encoder_type=NumbersEncoder,
    tokenizer=_tokenizer,
)
