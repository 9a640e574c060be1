"""The text encoder of Stable Audio 3: the encoder of T5Gemma, whose files hold the tokenizer."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from darkroom.engine.families.base import Network, TextEncoder, TokenizerParts, Vocabulary
from darkroom.engine.families.layouts import behind_first, saved_behind
from darkroom.engine.families.stable_audio3.t5_gemma import MARK, T5GemmaConfig, T5GemmaModel, t5_gemma_config
from darkroom.engine.families.text.t5 import TOKENIZER, lora_keys
from darkroom.engine.text import sentence_pieces
from darkroom.engine.text.language_encoding import LanguageEncoder, LanguageEncoding
from darkroom.engine.text.language_tokens import LanguageTokenizer

SLOT = "t5gemma"
CONTEXT_DIM = 768
PREFIX = f"text_encoders.{SLOT}.transformer."
PREFIXES = (PREFIX, f"{SLOT}.transformer.", "transformer.", "")  # of files of the encoder alone


class T5GemmaTextEncoder(LanguageEncoder):
    """An encoder of chunks of tokens, whose conditioning is zero at padding."""

    def _states(self, embeds: torch.Tensor, mask: torch.Tensor, layer_idx: int | None) -> torch.Tensor:
        is_last = layer_idx is None or abs(layer_idx) > self.num_layers
        out: torch.Tensor = self.transformer.encoder(embeds, mask, None if is_last else layer_idx)
        return out.float() * mask.unsqueeze(-1)


def _tokenizer(encoder: Any, parts: TokenizerParts) -> LanguageTokenizer:
    encoding: LanguageEncoding = encoder.encoding
    vocabulary = partial(sentence_pieces.sentence_pieces, encoder.vocabulary)
    return LanguageTokenizer(parts.find_embedding(encoding), encoding=encoding, vocabulary=vocabulary)


T5_GEMMA = TextEncoder(
    encoding=LanguageEncoding(slot=SLOT, embedding_width=CONTEXT_DIM, takes_embeddings=True, returns_mask=False),
    network=Network(
        layouts=(behind_first(PREFIXES, MARK),),
        in_checkpoint=(behind_first((PREFIX,), MARK),),
        configure=t5_gemma_config,
        build=T5GemmaModel,
        saved=partial(saved_behind, PREFIX),
        sizes={
            "full": T5GemmaConfig(),
            "small": T5GemmaConfig(
                width=64, intermediate_size=128, num_layers=2, num_heads=2, num_key_heads=2, vocabulary_size=261
            ),
        },
    ),
    fits=lambda shapes: MARK in shapes,
    lora_keys=partial(lora_keys, key=SLOT, numbers=()),
    encoder_type=T5GemmaTextEncoder,
    tokenizer=_tokenizer,
    vocabulary=Vocabulary(
        names=(TOKENIZER,), in_checkpoint=f"text_encoders.{TOKENIZER}", random=sentence_pieces.byte_vocabulary
    ),
)
