"""The text encoders of ACE-Step 1.5: Qwen3 0.6B for tags and lyrics, and a larger one that writes codes of a draft.

`B` prompts, `T` tokens, `D` hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import torch

from darkroom.engine.cancel import check_cancelled
from darkroom.engine.families.ace_step15.code_writer import (
    DEFAULT_GUIDANCE,
    CodeSampling,
    cache_bytes,
    padded_before,
    written_codes,
)
from darkroom.engine.families.ace_step15.denoiser import CODES, LYRICS
from darkroom.engine.families.ace_step15.song_prompts import CODES_PER_SECOND, Fact, Song, prompts_of, whole_seconds
from darkroom.engine.families.base import Shapes, TextEncoder
from darkroom.engine.families.text.language_model import fits_kind, language_text_encoder
from darkroom.engine.layers.language_model import EMBEDDING, QWEN3, LanguageModelConfig
from darkroom.engine.text.chunk_encoding import Encoded
from darkroom.engine.text.chunk_tokens import Chunks, TokenizerOptions
from darkroom.engine.text.language_encoding import LanguageEncoder, LanguageEncoding
from darkroom.engine.text.language_tokens import LanguageTokenizer, qwen3
from darkroom.engine.text.qwen_tokens import PAD_TOKEN

CAPTION_SLOT, LYRICS_SLOT, CODES_SLOT, NEGATIVE_SLOT = "qwen3_06b", "lyrics", "lm_prompt", "lm_prompt_negative"
SETTINGS_SLOT = "lm_metadata"  # how codes are drawn
FACTS = ("bpm", "duration", "keyscale", "timesignature")
NEGATIVE_FACTS = (*FACTS, "language")
CAPTION_WIDTH, SMALLER_WIDTH = 1024, 2048  # of Qwen3 0.6B, and of the smaller model that writes codes
LEAST_CODE_VOCABULARY = 200_000  # of models that write codes
LONGEST_SECONDS = 2000.0
SAMPLING_NAMES = tuple(item.name for item in fields(CodeSampling) if item.name != "num_codes")


class SongTokenizer(LanguageTokenizer):
    """Tags, lyrics and facts of a song -> the prompts of all encoders, by slot, and how codes are drawn.

    Brackets are text. `lyrics`, `language`, `bpm`, `duration` in seconds, `keyscale` and `timesignature` describe the
    song, `lyrics_negative`, `caption_negative` and the facts behind `_negative` what codes are led away from. Without
    `generate_audio_codes` none are written; `seed`, `cfg_scale`, `temperature`, `top_p`, `top_k` and `min_p` are those
    of `CodeSampling`.
    """

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: TokenizerOptions | None = None,
        disable_weights: bool = True,
        llama_template: str | None = None,
        **kwargs: object,
    ) -> Chunks:
        """Return the prompts by slot. Raises ValueError for a length that is none."""
        given: Mapping[str, Any] = kwargs
        song = song_of(text, given)
        found: dict[str, Any] = {}
        for slot, prompt in prompts_of(song).items():
            with_ids = return_word_ids and slot == self.slot
            plain = super().tokenize_with_weights(prompt, with_ids, tokenizer_options, True, llama_template="{}")
            found[slot] = plain[self.slot]
        seconds = song.facts["duration"]
        num_codes = int(given.get("min_tokens", int(seconds or 0) * CODES_PER_SECOND))
        found[SETTINGS_SLOT] = {
            "min_tokens": num_codes,
            "max_tokens": int(given.get("max_tokens", num_codes)),
            "generate_audio_codes": kwargs.get("generate_audio_codes", True),
            **{name: kwargs[name] for name in SAMPLING_NAMES if name in kwargs},
        }
        return found


class NoTokenizer(LanguageTokenizer):
    """The tokenizer of the model that writes codes, whose prompts are made with those of the other encoder."""

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: TokenizerOptions | None = None,
        disable_weights: bool = False,
        llama_template: str | None = None,
        **kwargs: object,
    ) -> Chunks:
        """Return no chunks."""
        return {}


def song_of(text: str, options: Mapping[str, Any]) -> Song:
    """Return the song of tags and options of nodes. Raises ValueError for a length that is none."""
    caption, lyrics = text.strip(), options.get("lyrics", "")
    seconds = whole_seconds(options.get("duration", 120.0))
    if seconds > LONGEST_SECONDS:
        raise ValueError(f"duration: too long; got {seconds} s, expected at most {LONGEST_SECONDS:g} s")
    facts: dict[str, Fact] = {name: options[name] for name in FACTS if name in options}
    negative = {name: options[f"{name}_negative"] for name in NEGATIVE_FACTS if f"{name}_negative" in options}
    return Song(
        caption=caption,
        lyrics=lyrics,
        language=options.get("language") or "",
        facts={**facts, "duration": seconds},
        negative_caption=options.get("caption_negative", caption).strip(),
        negative_lyrics=options.get("lyrics_negative", lyrics),
        negative_facts=negative,
    )


class SongEncoder(LanguageEncoder):
    """Qwen3 0.6B: the states of the caption's tokens, and the embeddings of those of the lyrics as an option."""

    def _states(self, embeds: torch.Tensor, mask: torch.Tensor, layer_idx: int | None) -> torch.Tensor:
        """Return the output of the network, whatever layer nodes ask for."""
        return super()._states(embeds, mask, None)

    def further_options(self, tokens: Mapping[str, Any]) -> dict[str, object]:
        """Return the embeddings [1, T, D] of the lyrics, where there are tokens of some."""
        if LYRICS_SLOT not in tokens:
            return {}
        rows, _ = self._embed([token for token, *_ in tokens[LYRICS_SLOT][0]])
        return {LYRICS: rows[None].float()}


class CodeEncoder(LanguageEncoder):
    """The language model that writes codes, an option of the conditioning."""

    def working_bytes(self, tokens: Mapping[str, Any], itemsize: int) -> int:
        """Return the bytes of the keys and values in float32 that are held while codes are written; 0 without any."""
        slots = _written_slots(tokens)
        if not slots:
            return 0
        length = max(len(tokens[slot][0]) for slot in slots) + int(tokens[SETTINGS_SLOT]["min_tokens"])
        return cache_bytes(self.config, len(slots), length)

    def further_options(self, tokens: Mapping[str, Any]) -> dict[str, object]:
        """Return the codes as a list of one list, where there are prompts for some. Raises `Interrupted`."""
        slots = _written_slots(tokens)
        if not slots:
            return {}
        settings: Mapping[str, Any] = tokens[SETTINGS_SLOT]
        drawn = {name: settings[name] for name in SAMPLING_NAMES if name in settings}
        sampling = CodeSampling(num_codes=int(settings["min_tokens"]), **drawn)
        prompts = padded_before([[token for token, *_ in tokens[slot][0]] for slot in slots], PAD_TOKEN)
        embedded = [self._embed(prompt) for prompt in prompts]
        rows = torch.stack([item for item, _ in embedded])
        masks = [
            seen_rows(prompt, num_rows, len(item)) for prompt, (item, num_rows) in zip(prompts, embedded, strict=True)
        ]
        mask = torch.tensor(masks, device=rows.device)
        codes = written_codes(self.transformer.model, rows, mask, sampling, lambda index: check_cancelled())
        return {CODES: [codes]}


def _written_slots(tokens: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the slots of the prompts that codes are written behind; none where none are."""
    settings: Mapping[str, Any] = tokens.get(SETTINGS_SLOT, {})
    if CODES_SLOT not in tokens or not settings.get("generate_audio_codes"):
        return ()
    is_guided = settings.get("cfg_scale", DEFAULT_GUIDANCE) != 1.0
    return (CODES_SLOT, NEGATIVE_SLOT) if is_guided else (CODES_SLOT,)


def writes_codes(encoders: Any) -> bool:
    """Return True for a set of text encoders with a model that writes codes."""
    return any(isinstance(encoder, CodeEncoder) for encoder in encoders.encoders().values())


def seen_rows(prompt: Sequence[Any], num_rows: Sequence[int], length: int) -> list[int]:
    """Return 1 for each row of a prompt that others attend to: between the padding before it and the next padding."""
    is_padding = [not isinstance(token, torch.Tensor) and token == PAD_TOKEN for token in prompt]
    start = next((index for index, is_pad in enumerate(is_padding) if not is_pad), len(prompt))
    end = next((index for index in range(start, len(prompt)) if is_padding[index]), len(prompt))
    seen: list[int] = []
    for index, (token, num) in enumerate(zip(prompt, num_rows, strict=True)):
        seen.extend([int(start <= index < end or isinstance(token, torch.Tensor))] * num)
    return seen + [0] * (length - len(seen))


def song_conditioning(encoded: Mapping[str, Encoded]) -> Encoded:
    """Return the conditioning of the caption."""
    return encoded[CAPTION_SLOT]


def _fits(shapes: Shapes, *, fits_sizes: Callable[[int, int], bool]) -> bool:
    return fits_kind(shapes, kind=QWEN3) and fits_sizes(*shapes[EMBEDDING])


def _encoder(
    key: str,
    width: int,
    fits_sizes: Callable[[int, int], bool],
    encoder_type: type[LanguageEncoder],
    tokenizer_type: type[LanguageTokenizer],
    sizes: Mapping[str, LanguageModelConfig],
) -> TextEncoder:
    encoding = LanguageEncoding(
        slot=key, embedding_width=width, pad_token=PAD_TOKEN, takes_weights=False, takes_embeddings=True,
        returns_mask=False,
    )  # fmt: skip
    return language_text_encoder(
        encoding, kind=QWEN3, sizes=sizes, vocabulary=qwen3, encoder_type=encoder_type, tokenizer_type=tokenizer_type,
        fits=partial(_fits, fits_sizes=fits_sizes),
    )  # fmt: skip


def _size(layers: int, width: int, heads: int, key_heads: int, inner_width: int, tokens: int) -> LanguageModelConfig:
    return LanguageModelConfig(
        kind=QWEN3, num_layers=layers, width=width, heads=heads, key_heads=key_heads, inner_width=inner_width,
        vocabulary_size=tokens, norms_queries=True,
    )  # fmt: skip


CAPTION_TOKENS, CODE_TOKENS = 151669, 217204
QWEN_06B = _encoder(
    CAPTION_SLOT, CAPTION_WIDTH,
    lambda tokens, width: tokens < LEAST_CODE_VOCABULARY and width <= CAPTION_WIDTH,
    SongEncoder, SongTokenizer,
    {
        "full": _size(28, CAPTION_WIDTH, 16, 8, 3072, CAPTION_TOKENS),
        "small": _size(2, 32, 2, 1, 64, CAPTION_TOKENS),
    },
)  # fmt: skip
CODES_2B = _encoder(
    "qwen3_2b", SMALLER_WIDTH,
    lambda tokens, width: tokens >= LEAST_CODE_VOCABULARY and width == SMALLER_WIDTH,
    CodeEncoder, NoTokenizer,
    {"full": _size(28, SMALLER_WIDTH, 16, 8, 6144, CODE_TOKENS)},
)  # fmt: skip
CODES_4B = _encoder(
    "qwen3_4b", 2560,
    lambda tokens, width: tokens >= LEAST_CODE_VOCABULARY and width != SMALLER_WIDTH,
    CodeEncoder, NoTokenizer,
    {"small": _size(2, 32, 1, 1, 64, CODE_TOKENS)},
)  # fmt: skip
