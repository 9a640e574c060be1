"""The text encoders of Flux.2, of which a model has one: Mistral Small 3 for dev, Qwen3 4B or 8B for Klein.

The conditioning is what three layers read, side by side. `B` prompts, `T` tokens, `D` width.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from darkroom.engine.families.base import Shapes, TextEncoder, TokenizerParts, Vocabulary
from darkroom.engine.families.text.language_model import fits_kind, language_text_encoder
from darkroom.engine.layers.language_model import (
    EMBEDDING,
    LLAMA3,
    MISTRAL3,
    QUERIES,
    QWEN3,
    LanguageModelConfig,
    LanguageModelKind,
)
from darkroom.engine.text.language_encoding import LanguageEncoder, LanguageEncoding
from darkroom.engine.text.language_tokens import LanguageTokenizer, qwen3
from darkroom.engine.text.qwen_tokens import PAD_TOKEN
from darkroom.engine.text.tekken_tokens import START_TOKEN, UNKNOWN_TOKEN, byte_tekken, tekken_vocabulary

MISTRAL_WIDTH, QWEN_4B_WIDTH, QWEN_8B_WIDTH = 5120, 2560, 4096
MISTRAL_LAYERS, QWEN_LAYERS = (10, 20, 30), (9, 18, 27)  # those whose inputs are read
OTHER_SQUARE_WIDTHS = (2048, 5120)  # of Qwen3 models with queries as wide as their tokens that no network reads
TOKENIZER = "tekken_model"
MISTRAL_TEMPLATE = (
    "[SYSTEM_PROMPT]You are an AI that reasons about image descriptions. You give structured responses focusing on "
    "object relationships, object\nattribution and actions without speculation.[/SYSTEM_PROMPT][INST]{}[/INST]"
)
QWEN_TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
QWEN_TOKENS = 512  # at least


class LayerInputsEncoder(LanguageEncoder):
    """A language model whose conditioning is what some layers read, side by side [B, T, layers * D].

    A node that asks for another layer (`CLIPSetLastLayer`) changes nothing, as in ComfyUI.
    """

    def __init__(self, transformer: Any, encoding: LanguageEncoding, *, layers: tuple[int, ...]) -> None:
        super().__init__(transformer, encoding)
        self.layers = layers

    @property
    def output_width(self) -> int:
        """Width of a token of the conditioning."""
        width: int = self.config.width
        return width * len(self.layers)

    def _states(self, embeds: torch.Tensor, mask: torch.Tensor, layer_idx: int | None) -> torch.Tensor:
        states: torch.Tensor = self.transformer.model.chosen_states(self.layers, embeds, mask)
        return states.transpose(1, 2).flatten(2)


def is_square(shapes: Shapes) -> bool:
    """Return True for a model whose queries are as wide as its tokens: of Qwen3's sizes, that of 8 billion weights."""
    return shapes[QUERIES][0] == shapes[EMBEDDING][1]


def _fits_4b(shapes: Shapes) -> bool:
    return fits_kind(shapes, kind=QWEN3) and not is_square(shapes)


def _fits_8b(shapes: Shapes) -> bool:
    is_kind = fits_kind(shapes, kind=QWEN3)
    return is_kind and is_square(shapes) and shapes[EMBEDDING][1] not in OTHER_SQUARE_WIDTHS


def _tekken_tokenizer(encoder: Any, parts: TokenizerParts) -> LanguageTokenizer:
    return LanguageTokenizer(
        parts.find_embedding(encoder.encoding),
        encoding=encoder.encoding,
        vocabulary=partial(tekken_vocabulary, encoder.vocabulary),
    )


def _qwen_encoding(slot: str, width: int) -> LanguageEncoding:
    return LanguageEncoding(
        slot=slot, embedding_width=width, pad_token=PAD_TOKEN, min_length=QWEN_TOKENS, template=QWEN_TEMPLATE,
        takes_weights=False, takes_embeddings=True,
    )  # fmt: skip


def _size(
    kind: LanguageModelKind,
    *,
    num_layers: int,
    width: int,
    heads: int,
    key_heads: int,
    inner_width: int,
    tokens: int = 151936,
) -> LanguageModelConfig:
    """Return the configuration of an encoder with a vocabulary of so many tokens."""
    return LanguageModelConfig(
        kind=kind, num_layers=num_layers, width=width, heads=heads, key_heads=key_heads, inner_width=inner_width,
        vocabulary_size=tokens, norms_queries=kind is QWEN3,
    )  # fmt: skip


def _without_last_norm(mistral: TextEncoder) -> TextEncoder:
    """Return the encoder for files too that end behind the last layer read, which have no final norm."""
    return replace(mistral, network=replace(mistral.network, defaults={"model.norm.weight": torch.ones}))


MISTRAL = _without_last_norm(
    replace(
        language_text_encoder(
            LanguageEncoding(
                slot="mistral3_24b", embedding_width=MISTRAL_WIDTH, start_token=START_TOKEN, pad_token=UNKNOWN_TOKEN,
                template=MISTRAL_TEMPLATE, takes_weights=False, takes_embeddings=True,
            ),
            kind=MISTRAL3, fits=partial(fits_kind, kind=LLAMA3),
            encoder_type=partial(LayerInputsEncoder, layers=MISTRAL_LAYERS),
            sizes={
                "full": _size(
                    MISTRAL3, num_layers=40, width=MISTRAL_WIDTH, heads=32, key_heads=8, inner_width=32768,
                    tokens=131072,
                ),
                "small": _size(
                    MISTRAL3, num_layers=30, width=64, heads=2, key_heads=1, inner_width=128, tokens=512
                ),
            },
        ),
        tokenizer=_tekken_tokenizer,
        vocabulary=Vocabulary(names=(TOKENIZER,), in_checkpoint=f"text_encoders.{TOKENIZER}", random=byte_tekken),
    )
)  # fmt: skip
QWEN_4B = language_text_encoder(
    _qwen_encoding("qwen3_4b", QWEN_4B_WIDTH), kind=QWEN3, fits=_fits_4b, vocabulary=qwen3,
    encoder_type=partial(LayerInputsEncoder, layers=QWEN_LAYERS),
    sizes={
        "klein_4b": _size(QWEN3, num_layers=36, width=QWEN_4B_WIDTH, heads=32, key_heads=8, inner_width=9728),
        "small_klein_4b": _size(QWEN3, num_layers=28, width=32, heads=1, key_heads=1, inner_width=64),
    },
)  # fmt: skip
QWEN_8B = language_text_encoder(
    _qwen_encoding("qwen3_8b", QWEN_8B_WIDTH), kind=QWEN3, fits=_fits_8b, vocabulary=qwen3,
    encoder_type=partial(LayerInputsEncoder, layers=QWEN_LAYERS),
    sizes={
        "klein_9b": _size(QWEN3, num_layers=36, width=QWEN_8B_WIDTH, heads=32, key_heads=8, inner_width=12288),
        "small_klein_9b": _size(QWEN3, num_layers=28, width=128, heads=1, key_heads=1, inner_width=64),
    },
)  # fmt: skip
