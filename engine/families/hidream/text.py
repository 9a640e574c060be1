"""The text encoders of HiDream-I1: CLIP ViT-L and OpenCLIP ViT-bigG for the pooled output, T5-XXL, Llama 3.1.

Each may be left out. `T` tokens, `D` width, `L` layers of Llama.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from darkroom.engine.families.base import TokenizerParts, Vocabulary
from darkroom.engine.families.text.clip_g import second_clip_g
from darkroom.engine.families.text.clip_l import clip_l
from darkroom.engine.families.text.language_model import language_text_encoder
from darkroom.engine.families.text.t5 import t5_xxl
from darkroom.engine.layers.language_model import LLAMA3, LanguageModelConfig
from darkroom.engine.text.chunk_encoding import Encoded
from darkroom.engine.text.chunk_tokens import Weighted, Word
from darkroom.engine.text.clip_l import CLIP_L_ENCODING
from darkroom.engine.text.language_encoding import LanguageEncoder, LanguageEncoding
from darkroom.engine.text.language_tokens import LanguageTokenizer
from darkroom.engine.text.llama_tokens import PAD_TOKEN, START_TOKEN, byte_tokenizer
from darkroom.engine.text.t5_encoding import T5Encoding
from darkroom.engine.text.t5_tokens import T5Tokenizer
from darkroom.engine.text.vocabulary import stored_vocabulary

L_WIDTH, G_WIDTH, TEXT_DIM, LANGUAGE_DIM, NUM_STATES = 768, 1280, 4096, 4096, 32
NUM_TOKENS = 128  # of T5 at most, of T5 and Llama at least
UNDIVIDED = 8  # parts of a prompt of fewer tokens are not cut
TOKENIZER = "tokenizer_json"
STATES = "conditioning_llama3"  # ComfyUI's name of Llama's layers in a conditioning


class ShortT5Tokenizer(T5Tokenizer):
    """The tokenizer of a T5 that reads the first 128 tokens alone."""

    def _chunks(self, words: Sequence[Word], min_padding: int, min_length: int) -> list[list[Weighted]]:
        chunk = self._started()
        for number, word in enumerate(words, start=1):
            left = NUM_TOKENS - 1 - len(chunk)
            kept = word if len(word) <= left else word[:left] if len(word) >= UNDIVIDED else []
            chunk.extend((token, weight, number) for token, weight in kept)
            if len(word) > left:
                return [[*chunk, (self.encoding.end_token, 1.0, 0)]]
        self._end(chunk, min_padding, min_length)
        return [chunk]


class LayersEncoder(LanguageEncoder):
    """A language model whose conditioning is the input of each layer and the output of all [1, L + 1, T, D]."""

    def _states(self, embeds: torch.Tensor, mask: torch.Tensor, layer_idx: int | None) -> torch.Tensor:
        states: torch.Tensor = self.transformer.model.all_states(embeds, mask)
        return states

    def _weighted(self, cond: torch.Tensor, empty: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the conditioning with weights, each for the layer of its token's number: ComfyUI's way."""
        factors = weights[:, : cond.shape[1], None, None]
        return torch.where(factors != 1.0, (cond - empty) * factors + empty, cond)


def combined(encoded: Mapping[str, Encoded]) -> Encoded:
    """Return the tokens of T5, both pooled outputs, and the outputs of Llama's layers [1, L, T, D].

    Zeros take the place of encoders that are left out.
    """
    like = next(iter(encoded.values())).cond
    text = encoded["t5xxl"].cond if "t5xxl" in encoded else like.new_zeros(1, NUM_TOKENS, TEXT_DIM)
    states = encoded["llama"].cond[:, 1:] if "llama" in encoded else like.new_zeros(1, NUM_STATES, 1, LANGUAGE_DIM)
    pooled = [_pooled(encoded, slot, width, like) for slot, width in (("l", L_WIDTH), ("g", G_WIDTH))]
    return Encoded(text, torch.cat(pooled, dim=-1), {STATES: states})


def _pooled(encoded: Mapping[str, Encoded], slot: str, width: int, like: torch.Tensor) -> torch.Tensor:
    """Return the pooled output [1, width] of an encoder, zeros for one that is left out."""
    found = encoded[slot].pooled if slot in encoded else None
    return like.new_zeros(1, width) if found is None else found


def _t5_tokenizer(encoder: Any, parts: TokenizerParts) -> ShortT5Tokenizer:
    return ShortT5Tokenizer(parts.find_embedding(encoder.encoding), encoding=encoder.encoding)


def _llama_tokenizer(encoder: Any, parts: TokenizerParts) -> LanguageTokenizer:
    return LanguageTokenizer(
        parts.find_embedding(encoder.encoding),
        encoding=encoder.encoding,
        vocabulary=partial(stored_vocabulary, encoder.vocabulary),
    )


CLIP_L, CLIP_G = clip_l(replace(CLIP_L_ENCODING, projects_pooled=True)), second_clip_g()
T5 = replace(t5_xxl(T5Encoding(min_length=NUM_TOKENS, masks_padding=True), lora_numbers=(3,)), tokenizer=_t5_tokenizer)
LLAMA = replace(
    language_text_encoder(
        LanguageEncoding(
            slot="llama", embedding_width=LANGUAGE_DIM, start_token=START_TOKEN, pad_token=PAD_TOKEN,
            min_length=NUM_TOKENS, takes_embeddings=True, returns_mask=False,
        ),
        kind=LLAMA3, encoder_type=LayersEncoder,
        sizes={
            "full": LanguageModelConfig(
                kind=LLAMA3, num_layers=32, width=LANGUAGE_DIM, heads=32, key_heads=8, inner_width=14336,
                vocabulary_size=128256,
            ),
            "small": LanguageModelConfig(
                kind=LLAMA3, num_layers=2, width=16, heads=1, key_heads=1, inner_width=32, vocabulary_size=128256
            ),
        },
    ),
    tokenizer=_llama_tokenizer,
    vocabulary=Vocabulary(
        names=(TOKENIZER,), in_checkpoint=f"text_encoders.{TOKENIZER}", random=byte_tokenizer,
        beside="llama_tokenizer.json",
    ),
)  # fmt: skip
