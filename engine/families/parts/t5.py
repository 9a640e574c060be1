"""T5-XXL as a text encoder of a family: its files, its tokens, and its names in LoRA files."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from engine.architectures.t5 import T5Model
from engine.architectures.t5_shapes import EMBEDDING, t5_config
from engine.families.base import Network, TextEncoder, TokenizerParts
from engine.families.parts.layouts import behind_first, saved_behind
from engine.text.t5_encoding import T5Encoder, T5Encoding
from engine.text.t5_tokens import T5Tokenizer

PREFIX = "text_encoders.t5xxl.transformer."
PREFIXES = (PREFIX, "t5xxl.transformer.", "transformer.", "")  # of files of the encoder alone


def lora_keys(weight_names: Iterable[str], key: str, numbers: tuple[int, ...]) -> dict[str, str]:
    """Return a map from the names used in LoRA files to the weights of the encoder.

    `numbers` are those that trainers give it among the encoders of its set.
    """
    prefix = f"{key}.transformer."
    keys: dict[str, str] = {}
    for name in weight_names:
        if name.startswith(prefix) and name.endswith(".weight"):
            bare = name.removesuffix(".weight")
            flat = bare.removeprefix(prefix).replace(".", "_")
            keys[f"text_encoders.{bare}"] = name
            keys |= {f"lora_te{number}_{flat}": name for number in numbers}
    return keys


def _tokenizer(encoder: Any, parts: TokenizerParts) -> T5Tokenizer:
    encoding: T5Encoding = encoder.encoding
    return T5Tokenizer(parts.find_embedding(encoding), slot=encoding.slot, min_length=encoding.min_length)


def t5_xxl(encoding: T5Encoding, *, lora_numbers: tuple[int, ...]) -> TextEncoder:
    """Describe the encoder of a family whose checkpoints have it behind `text_encoders.`."""
    return TextEncoder(
        encoding=encoding,
        network=Network(
            layouts=(behind_first(PREFIXES, EMBEDDING),),
            in_checkpoint=(behind_first((PREFIX,), EMBEDDING),),
            configure=t5_config,
            build=T5Model,
            saved=partial(saved_behind, PREFIX),
        ),
        fits=lambda shapes: EMBEDDING in shapes,
        lora_keys=partial(lora_keys, key=encoding.key, numbers=lora_numbers),
        encoder_type=T5Encoder,
        tokenizer=_tokenizer,
    )
