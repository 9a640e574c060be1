"""The language model of MiniMax Music 3: Qwen3 8B with codes of audio among its tokens, 25 frames of eight a second.

The model predicts the first code of a frame, a decoder the others. Published files have tables of text and of first
codes apart, and scores of first codes alone; earlier ones have whole tables. `B` prompts, `T` tokens, `D` hidden size,
`V` tokens with scores. Module names are those of the published file, but for the table of text and the scores, which
have one name each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.families.base import NotRecognised
from darkroom.engine.families.minimax_music3.depth_decoder import (
    DepthDecoder,
    DepthDecoderConfig,
    depth_decoder_config,
)
from darkroom.engine.families.minimax_music3.prompts import SPECIAL_TOKENS
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.language_model import (
    EMBEDDING,
    QWEN3,
    DecoderStack,
    LanguageModelConfig,
    language_model_config,
)
from darkroom.engine.layers.shapes import Shapes

FIRST_CODE = 151675  # the token of the first one of the first codes, behind all of text
NUM_FIRST_CODES = 16384
LAST_TOKEN = FIRST_CODE + NUM_FIRST_CODES - 1
END = SPECIAL_TOKENS["<|audio_end|>"]
NUM_ALONE = NUM_FIRST_CODES + 1  # scores where there are no others: of the end, then of the codes

CODE_TABLE, FURTHER_TABLE = "model.embed_tokens_audio.weight", "model.audio_extra_embedding.weight"
SCORES = "model.lm_head.weight"


@dataclass(frozen=True, slots=True)
class SongWriterConfig:
    """Configuration of the network.

    With `has_code_table` first codes have a table of their own, with `scores_codes_alone` other tokens have no scores.
    """

    language: LanguageModelConfig
    depth: DepthDecoderConfig
    has_code_table: bool = True
    scores_codes_alone: bool = True

    @property
    def width(self) -> int:
        """Hidden size of the language model."""
        return self.language.width


def song_writer_config(shapes: Shapes) -> SongWriterConfig:
    """Return the configuration of the network with these tensors.

    Raises LookupError for a missing one, `NotRecognised` for tables without the tokens of audio.
    """
    has_code_table = CODE_TABLE in shapes
    num_tokens, num_scores = shapes[EMBEDDING][0], shapes[SCORES][0]
    depth = depth_decoder_config(shapes)
    least = FIRST_CODE if has_code_table else LAST_TOKEN + 1
    is_whole = num_tokens >= least and (num_scores == NUM_ALONE or num_scores > LAST_TOKEN)
    if has_code_table and shapes[CODE_TABLE][0] != NUM_FIRST_CODES:
        is_whole = False
    if not is_whole or shapes[FURTHER_TABLE][0] != depth.num_codebooks * depth.num_codes:
        raise NotRecognised(f"a language model of {num_tokens} tokens and {num_scores} scores, which writes no audio")
    return SongWriterConfig(
        language_model_config(shapes, QWEN3), depth, has_code_table, scores_codes_alone=num_scores == NUM_ALONE
    )


class SongStack(DecoderStack):
    def __init__(self, config: SongWriterConfig) -> None:
        super().__init__(config.language)
        size, depth = config.width, config.depth
        num_scores = NUM_ALONE if config.scores_codes_alone else config.language.vocabulary_size
        if config.has_code_table:
            self.embed_tokens_audio = nn.Embedding(NUM_FIRST_CODES, size)
        self.audio_extra_embedding = nn.Embedding(depth.num_codebooks * depth.num_codes, size)
        self.audio_decoder = DepthDecoder(depth)
        self.lm_head = Linear(size, num_scores, bias=False)


class SongWriter(nn.Module):
    """A model that writes frames of codes behind prompts (`frame_writer.py`)."""

    def __init__(self, config: SongWriterConfig) -> None:
        super().__init__()
        self.config = config
        self.num_layers = config.language.num_layers
        self.model = SongStack(config)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.embed_tokens

    @property
    def first_offset(self) -> int:
        """The index of the first code among the scores."""
        return 1 if self.config.scores_codes_alone else FIRST_CODE

    @property
    def end(self) -> int:
        """The index of the end of a song among the scores."""
        return 0 if self.config.scores_codes_alone else END

    def scores(self, states: torch.Tensor) -> torch.Tensor:
        """Return the scores [B, V], float32, of states [B, D]; those of tokens that are no audio are minus infinity."""
        scores: torch.Tensor = self.model.lm_head(states).float()
        if self.config.scores_codes_alone:
            return scores
        tokens = torch.arange(scores.shape[-1], device=scores.device)
        is_other = ((tokens < FIRST_CODE) | (tokens > LAST_TOKEN)) & (tokens != END)
        return scores.masked_fill(is_other, -torch.inf)

    def first_rows(self, codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the rows [B, D] of first codes [B]."""
        model = self.model
        rows: torch.Tensor = (
            model.embed_tokens_audio(codes) if self.config.has_code_table else model.embed_tokens(codes + FIRST_CODE)
        )
        return rows.to(dtype)

    def further_rows(self, codes: torch.Tensor, first_book: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the rows [B, N, D] of codes [B, N] of neighbouring codebooks, of which `first_book` is the first."""
        books = torch.arange(first_book, first_book + codes.shape[1], device=codes.device)
        rows: torch.Tensor = self.model.audio_extra_embedding(codes + books * self.config.depth.num_codes)
        return rows.to(dtype)
