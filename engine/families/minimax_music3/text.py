"""The text encoder of MiniMax Music 3: a language model that writes a song, of which diffusion reads the states.

Files hold the tokenizer. `T` tokens, `F` frames, `D` hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch

from darkroom.engine.cancel import check_cancelled
from darkroom.engine.families.base import Network, Shapes, Tensors, TextEncoder, TokenizerParts, Vocabulary
from darkroom.engine.families.layouts import names_behind, saved_behind
from darkroom.engine.families.minimax_music3.depth_decoder import KEY, DepthDecoderConfig
from darkroom.engine.families.minimax_music3.frame_writer import FrameSampling, written_states
from darkroom.engine.families.minimax_music3.prompts import SPECIAL_TOKENS, song_prompt
from darkroom.engine.families.minimax_music3.song_writer import (
    CODE_TABLE,
    FIRST_CODE,
    NUM_ALONE,
    SCORES,
    SongWriter,
    SongWriterConfig,
    song_writer_config,
)
from darkroom.engine.families.text.t5 import lora_keys
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.layers.language_model import EMBEDDING, QWEN3, LanguageModelConfig
from darkroom.engine.text.chunk_encoding import Encoded, TokenEncoder, TokenWeights
from darkroom.engine.text.chunk_tokens import Chunks, ChunkTokenizer, TokenizerOptions
from darkroom.engine.text.llama_tokens import byte_tokenizer
from darkroom.engine.text.qwen_tokens import PAD_TOKEN
from darkroom.engine.text.vocabulary import LibraryVocabulary, stored_vocabulary

SLOT = "minimax_music3"
TOKENIZER = "tokenizer_json"
PREFIX = f"text_encoders.{SLOT}.transformer."
PREFIXES = (PREFIX, f"{SLOT}.transformer.", "transformer.", "cond_stage_model.", "")
TEXT_TABLE, SCORES_ALONE, OUTER_SCORES = "model.embed_tokens_prefill.weight", "model.lm_head_pruned.weight", "lm_head."
MOST_TOKENS = 5000  # of a prompt
KEPT_AT_BOTH_ENDS = 1, 2  # tokens of a prompt that the prompt for nothing has too
NOTHING = SPECIAL_TOKENS["<|audio_cfg|>"]
FRAMES = "max_audio_frames"  # ComfyUI's name beside the tokens


@dataclass(frozen=True, slots=True)
class SongEncoding:
    """Settings of the encoder, which reads the tokens of one slot."""

    slot: str
    embedding_width: int
    pad_token: int = PAD_TOKEN

    @property
    def key(self) -> str:
        """ComfyUI's name of the encoder."""
        return self.slot


class SongTokenizer(ChunkTokenizer):
    """A caption, and lyrics as an option -> one chunk of tokens, with how the song is written. Brackets are text."""

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: TokenizerOptions | None = None,
        disable_weights: bool = True,
        **kwargs: object,
    ) -> Chunks:
        """Return the chunk by slot. `lyrics`, `seed`, `max_audio_frames`, `cfg_scale` and `top_k` are of the song.

        Raises ValueError for a prompt without a length of the song, a text that is too long, and for the tokenizer of
        another model.
        """
        given: Mapping[str, Any] = kwargs
        if FRAMES not in given:
            raise ValueError(
                "clip: MiniMax Music 3's text encoder writes songs, which CLIPTextEncode knows no length of; expected "
                "the node MiniMaxMusic3TextEncode"
            )
        vocabulary = self.vocabulary()
        for special, expected in SPECIAL_TOKENS.items():
            if vocabulary.encode(special) != [expected]:
                raise ValueError(f"clip: its file has the tokenizer of another model; expected {special} at {expected}")
        tokens = vocabulary.encode(song_prompt(text, str(given.get("lyrics", ""))))
        if len(tokens) > MOST_TOKENS:
            raise ValueError(
                f"caption and lyrics: too long together; got {len(tokens)} tokens, expected at most {MOST_TOKENS}"
            )
        sampling: dict[str, Any] = {
            FRAMES: int(given[FRAMES]),
            **{name: given[name] for name in ("seed", "cfg_scale", "top_k") if name in given},
        }
        return {self.slot: [[(token, 1.0, 0) if return_word_ids else (token, 1.0) for token in tokens]], **sampling}

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of tokens, without special ones unless `skip_special_tokens` is False."""
        vocabulary = self.vocabulary()
        assert isinstance(vocabulary, LibraryVocabulary)
        return vocabulary.decode(tokens, skip_special_tokens=skip_special_tokens)


class SongEncoder(TokenEncoder):
    """Qwen3 with codes of audio: the states of a song that it writes. `transformer` is a `SongWriter`."""

    encoding: SongEncoding

    def __init__(self, transformer: SongWriter, encoding: SongEncoding) -> None:
        super().__init__(transformer, encoding)
        self.vocabulary: bytes | None = None

    @property
    def output_width(self) -> int:
        """Channels of the states of a frame."""
        config: SongWriterConfig = self.config
        return config.width * (config.depth.num_codebooks + 1)

    def encode_among(self, tokens: Mapping[str, Any], *, layer_idx: int | None, project_pooled: bool) -> Encoded:
        """Return the states [1, F, 8 D], float32, of the song that is written behind a prompt. Raises `Interrupted`."""
        return self._written(tokens[self.encoding.slot], _sampling(tokens))

    def encode_weighted(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return the states [1, F, 8 D], float32, of a song of any length. Raises `Interrupted`."""
        return self._written(chunks, FrameSampling())

    def working_bytes(self, tokens: Mapping[str, Any], itemsize: int) -> int:
        """Return the memory for the keys and values of a song, and for those of a layer as its queries read them.

        It is 0 without a prompt of a song.
        """
        if self.encoding.slot not in tokens:
            return 0
        language = self.config.language
        num_tokens = len(tokens[self.encoding.slot][0]) + _sampling(tokens).max_frames + 1
        row = 2 * 2 * num_tokens * language.kind.head_width * itemsize  # keys and values of a head, of both prompts
        return int(row * (language.key_heads * language.num_layers + 2 * language.heads))

    def _written(self, chunks: Sequence[TokenWeights], sampling: FrameSampling) -> Encoded:
        prompt = [token for token, *_ in chunks[0]]
        first, last = KEPT_AT_BOTH_ENDS
        nothing = [*prompt[:first], *[NOTHING] * (len(prompt) - first - last), *prompt[-last:]]
        rows = torch.stack([self._embed(tokens)[0] for tokens in (prompt, nothing)])
        return Encoded(written_states(self.transformer, rows, sampling, lambda index: check_cancelled())[None], None)


def _sampling(tokens: Mapping[str, Any]) -> FrameSampling:
    """Return how a song is written, by what stands beside the tokens."""
    names = {FRAMES: "max_frames", **{item.name: item.name for item in fields(FrameSampling)}}
    return FrameSampling(**{ours: tokens[theirs] for theirs, ours in names.items() if theirs in tokens})


def layout(shapes: Shapes, prefixes: Sequence[str]) -> Names | None:
    """Return the names of the language model behind the first prefix where its decoder is; None for other files."""
    prefix = next((prefix for prefix in prefixes if prefix + KEY in shapes), None)
    if prefix is None:
        return None
    renamed = {TEXT_TABLE: EMBEDDING, SCORES_ALONE: SCORES, f"{OUTER_SCORES}weight": SCORES}
    return {renamed.get(name, name): theirs for name, theirs in names_behind(shapes, prefix).items()}


def saved(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the weights under a checkpoint's names."""
    renamed = {EMBEDDING: TEXT_TABLE} if CODE_TABLE in tensors else {}
    if tensors[SCORES].shape[0] == NUM_ALONE:
        renamed[SCORES] = SCORES_ALONE
    return saved_behind(PREFIX, {renamed.get(name, name): tensor for name, tensor in tensors.items()})


def _tokenizer(encoder: SongEncoder, parts: TokenizerParts) -> SongTokenizer:
    content = encoder.vocabulary or b""
    return SongTokenizer(
        None, slot=encoder.encoding.slot, vocabulary=partial(stored_vocabulary, content), pad_token=PAD_TOKEN
    )


def _size(
    num_layers: int, hidden_size: int, heads: int, key_heads: int, intermediate_size: int, depth: DepthDecoderConfig
) -> SongWriterConfig:
    language = LanguageModelConfig(
        kind=QWEN3, num_layers=num_layers, width=hidden_size, heads=heads, key_heads=key_heads,
        inner_width=intermediate_size, vocabulary_size=FIRST_CODE, norms_queries=True,
    )  # fmt: skip
    return SongWriterConfig(language, depth)


LANGUAGE_MODEL = TextEncoder(
    encoding=SongEncoding(SLOT, 4096),
    network=Network(
        layouts=(partial(layout, prefixes=PREFIXES),),
        in_checkpoint=(partial(layout, prefixes=(PREFIX, "cond_stage_model.")),),
        configure=song_writer_config,
        build=SongWriter,
        saved=saved,
        sizes={
            "full": _size(36, 4096, 32, 8, 12288, DepthDecoderConfig(4096, 6144)),
            "small": _size(2, 32, 2, 1, 64, DepthDecoderConfig(32, 48, num_layers=2)),
        },
    ),
    fits=lambda shapes: KEY in shapes,
    lora_keys=partial(lora_keys, key=SLOT, numbers=()),
    encoder_type=SongEncoder,
    tokenizer=_tokenizer,
    vocabulary=Vocabulary(
        names=(TOKENIZER,), in_checkpoint=f"text_encoders.{TOKENIZER}", random=partial(byte_tokenizer, SPECIAL_TOKENS)
    ),
)
