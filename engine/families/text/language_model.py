"""Language models as text encoders of a family: their files, their tokens, and their names in LoRA files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from darkroom.engine.families.base import Network, Shapes, TextEncoder, TokenizerParts, Vocabulary
from darkroom.engine.families.layouts import behind_first, saved_behind
from darkroom.engine.families.text.t5 import TOKENIZER, lora_keys
from darkroom.engine.layers.language_model import (
    EMBEDDING,
    LanguageModel,
    LanguageModelConfig,
    LanguageModelKind,
    kind_of,
    language_model_config,
)
from darkroom.engine.text import sentence_pieces
from darkroom.engine.text.language_encoding import LanguageEncoder, LanguageEncoding
from darkroom.engine.text.language_tokens import LanguageTokenizer
from darkroom.engine.text.vocabulary import TextVocabulary


def fits_kind(shapes: Shapes, *, kind: LanguageModelKind, width: int | None = None) -> bool:
    """Return True for a model of that kind, and of that width where it is given."""
    try:
        is_kind = kind_of(shapes) is kind
    except KeyError:
        return False
    return is_kind and (width is None or shapes[EMBEDDING][1] == width)


def language_text_encoder(
    encoding: LanguageEncoding,
    *,
    kind: LanguageModelKind,
    sizes: Mapping[str, LanguageModelConfig],
    fits: Callable[[Shapes], bool] | None = None,
    vocabulary: Callable[[], TextVocabulary] | None = None,
    encoder_type: Callable[[Any, Any], Any] = LanguageEncoder,
    tokenizer_type: Callable[..., LanguageTokenizer] = LanguageTokenizer,
) -> TextEncoder:
    """Describe a language model of a family whose checkpoints have it behind `text_encoders.`.

    `vocabulary` makes its tokenizer's vocabulary; None is for models whose files hold it.
    """
    prefix = f"text_encoders.{encoding.key}.transformer."
    prefixes = (prefix, f"{encoding.key}.transformer.", "transformer.", "")
    return TextEncoder(
        encoding=encoding,
        network=Network(
            layouts=(behind_first(prefixes, EMBEDDING),),
            in_checkpoint=(behind_first((prefix,), EMBEDDING),),
            configure=partial(language_model_config, kind=kind),
            build=LanguageModel,
            saved=partial(saved_behind, prefix),
            sizes=sizes,
        ),
        fits=fits or partial(fits_kind, kind=kind),
        lora_keys=partial(lora_keys, key=encoding.key, numbers=()),
        encoder_type=encoder_type,
        tokenizer=partial(_tokenizer, vocabulary=vocabulary, tokenizer_type=tokenizer_type),
        vocabulary=_of_files() if vocabulary is None else None,
    )


def _of_files() -> Vocabulary:
    """Describe the tokenizer that files hold."""
    return Vocabulary(
        names=(TOKENIZER,), in_checkpoint=f"text_encoders.{TOKENIZER}", random=sentence_pieces.byte_vocabulary
    )


def _tokenizer(
    encoder: Any,
    parts: TokenizerParts,
    *,
    vocabulary: Callable[[], TextVocabulary] | None,
    tokenizer_type: Callable[..., LanguageTokenizer],
) -> LanguageTokenizer:
    encoding: LanguageEncoding = encoder.encoding
    own = partial(sentence_pieces.sentence_pieces, encoder.vocabulary) if vocabulary is None else vocabulary
    return tokenizer_type(parts.find_embedding(encoding), encoding=encoding, vocabulary=own)
