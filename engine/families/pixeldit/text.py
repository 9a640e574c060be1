"""The text encoder of PixelDiT: Gemma 2 2B, which reads an instruction before the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from darkroom.engine.families.text.language_model import language_text_encoder
from darkroom.engine.layers.language_model import GEMMA2, LanguageModelConfig
from darkroom.engine.text.chunk_encoding import Encoded, TokenWeights
from darkroom.engine.text.chunk_tokens import Chunks, TokenizerOptions
from darkroom.engine.text.language_encoding import LanguageEncoder, LanguageEncoding
from darkroom.engine.text.language_tokens import LanguageTokenizer

SLOT = "gemma2_2b"
CONTEXT_DIM = 2304
START_TOKEN = 2
SPECIAL = {"<end_of_turn>": 107}
NUM_TOKENS = 300  # of the conditioning
# The instruction with which the networks were trained, that of Sana (Xie et al. 2024, arXiv 2410.10629). Prompts that
# have its beginning bring one themselves.
BEGINNING = 'Given a user prompt, generate an "Enhanced prompt"'
INSTRUCTION = (
    f"{BEGINNING} "
    "that provides detailed visual descriptions suitable for image generation. Evaluate the level of detail in "
    "the user prompt:\n- If the prompt is simple, focus on adding specifics about colors, shapes, sizes, "
    "textures, and spatial relationships to create vivid and concrete scenes.\n- If the prompt is already "
    "detailed, refine and enhance the existing details slightly without overcomplicating.\nHere are examples of "
    "how to transform or refine prompts:\n- User Prompt: A cat sleeping -> Enhanced: A small, fluffy white cat "
    "curled up in a round shape, sleeping peacefully on a warm sunny windowsill, surrounded by pots of blooming "
    "red flowers.\n- User Prompt: A busy city street -> Enhanced: A bustling city street scene at dusk, "
    "featuring glowing street lamps, a diverse crowd of people in colorful clothing, and a double-decker bus "
    "passing by towering glass skyscrapers.\nPlease generate only the enhanced description for the prompt below "
    "and avoid including any additional commentary or evaluations:\nUser Prompt: "
)


class PixelDiTEncoder(LanguageEncoder):
    """Gemma 2 whose conditioning is of the start token and of the last 299 tokens, padding among them."""

    def encode_weighted(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return the conditioning [1, 300, D] with its mask; of a shorter prompt all tokens."""
        cond, pooled, options = super().encode_weighted(chunks, layer_idx=layer_idx, project_pooled=project_pooled)
        return Encoded(_ends(cond), pooled, {name: _ends(of_tokens) for name, of_tokens in options.items()})


def _ends(tokens: torch.Tensor) -> torch.Tensor:
    """Return the first and the last 299 of tokens [1, T, ...], all where there are no more than 300."""
    if tokens.shape[1] <= NUM_TOKENS:
        return tokens
    return torch.cat([tokens[:, :1], tokens[:, 1 - NUM_TOKENS :]], dim=1)


class PixelDiTTokenizer(LanguageTokenizer):
    """Prompts -> one chunk behind the instruction, padded or cut to 298 tokens behind it. Brackets are text."""

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: TokenizerOptions | None = None,
        disable_weights: bool = True,
        llama_template: str | None = None,
        **kwargs: Any,
    ) -> Chunks:
        """Return the chunk by slot, that of an empty prompt without the instruction. Options have no effect."""
        if not text.strip():
            return self._padded("", NUM_TOKENS, return_word_ids)
        length = 1 + len(self.vocabulary().encode(INSTRUCTION)) + NUM_TOKENS - 2
        chunks = self._padded(text if text.startswith(BEGINNING) else INSTRUCTION + text, length, return_word_ids)
        return {slot: [chunk[:length] for chunk in of_slot] for slot, of_slot in chunks.items()}

    def _padded(self, text: str, length: int, return_word_ids: bool) -> Chunks:
        options = {f"{self.key}_min_length": length}
        return super().tokenize_with_weights(text, return_word_ids, options, disable_weights=True, llama_template="{}")


GEMMA = language_text_encoder(
    LanguageEncoding(slot=SLOT, embedding_width=CONTEXT_DIM, start_token=START_TOKEN),
    kind=GEMMA2,
    sizes={
        "full": LanguageModelConfig(
            kind=GEMMA2, num_layers=26, width=CONTEXT_DIM, heads=8, key_heads=4, inner_width=9216,
            vocabulary_size=256000, norms_outputs=True,
        ),
        "small": LanguageModelConfig(
            kind=GEMMA2, num_layers=2, width=64, heads=2, key_heads=1, inner_width=128, vocabulary_size=512,
            norms_outputs=True,
        ),
    },
    encoder_type=PixelDiTEncoder,
    tokenizer_type=partial(PixelDiTTokenizer, special=SPECIAL),
)  # fmt: skip
