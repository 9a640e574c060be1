"""T5 encoders as text encoders of a family: their files, their tokens, and their names in LoRA files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from darkroom.engine.families.base import Network, Shapes, TextEncoder, TokenizerParts, Vocabulary
from darkroom.engine.families.layouts import behind_first, saved_behind
from darkroom.engine.layers.t5 import EMBEDDING, T5Config, T5Model, is_biased_everywhere, t5_config
from darkroom.engine.text import sentence_pieces
from darkroom.engine.text.t5_encoding import T5Encoder, T5Encoding
from darkroom.engine.text.t5_tokens import T5Tokenizer, pile_t5_vocabulary, t5_vocabulary
from darkroom.engine.text.vocabulary import TextVocabulary

TOKENIZER = "spiece_model"  # the tensor of a serialised tokenizer
HOME = "text_encoders."  # where most families' checkpoints have their text encoders
XXL_WIDTH = 4096
BASE_LAYERS = 12
XXL_SIZES = {
    "full": T5Config(num_layers=24, width=XXL_WIDTH, heads=64, inner_width=10240),
    "small": T5Config(num_layers=2, width=128, heads=1, inner_width=128),
}
UMT5_XXL_SIZES = {
    "full": T5Config(
        num_layers=24, width=XXL_WIDTH, heads=64, inner_width=10240, vocabulary_size=256384, is_biased_everywhere=True
    ),
    "small": T5Config(
        num_layers=1, width=XXL_WIDTH, heads=1, inner_width=64, vocabulary_size=512, is_biased_everywhere=True
    ),
}
FEWEST_WORDS, MOST_WORDS = 20_000, 100_000  # ByT5 has 1510, mT5 250112, T5 32128


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


def prefixes_of(encoding: T5Encoding, home: str) -> tuple[str, ...]:
    """Return the prefixes of an encoder's weights, that of a checkpoint, behind `home`, first."""
    return (f"{home}{encoding.key}.transformer.", f"{encoding.key}.transformer.", "transformer.", "")


def is_t5(shapes: Shapes) -> bool:
    """Return True for an encoder with biases in its first layer alone."""
    return EMBEDDING in shapes and not is_biased_everywhere(shapes)


def fits_width(shapes: Shapes, *, width: int, biased_everywhere: bool | None = None) -> bool:
    """Return True for an encoder of that width, and with biases in every layer or the first alone where that is set."""
    if shapes.get(EMBEDDING, ())[1:] != (width,):
        return False
    return biased_everywhere is None or is_biased_everywhere(shapes) == biased_everywhere


def fits_pile_t5(shapes: Shapes) -> bool:
    """Return True for an encoder with a bias in every layer that is not of umT5-XXL's width."""
    return is_biased_everywhere(shapes) and shapes[EMBEDDING][1] != XXL_WIDTH


def t5_text_encoder(
    encoding: T5Encoding,
    *,
    fits: Callable[[Shapes], bool] = is_t5,
    tokenizer: Callable[[Any, TokenizerParts], Any],
    sizes: Mapping[str, T5Config],
    vocabulary: Vocabulary | None = None,
    lora_numbers: tuple[int, ...] = (),
    home: str = HOME,
) -> TextEncoder:
    """Describe a T5 encoder of a family whose checkpoints have it behind `home`."""
    first, *_ = prefixes = prefixes_of(encoding, home)
    return TextEncoder(
        encoding=encoding,
        network=Network(
            layouts=(behind_first(prefixes, EMBEDDING),),
            in_checkpoint=(behind_first((first,), EMBEDDING),),
            configure=t5_config,
            build=T5Model,
            saved=partial(saved_behind, first),
            sizes=sizes,
        ),
        fits=fits,
        lora_keys=partial(lora_keys, key=encoding.key, numbers=lora_numbers),
        encoder_type=T5Encoder,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
    )


def _tokenizer_with(vocabulary: Callable[[], TextVocabulary]) -> Callable[[Any, TokenizerParts], Any]:
    def tokenizer(encoder: Any, parts: TokenizerParts) -> T5Tokenizer:
        encoding: T5Encoding = encoder.encoding
        return T5Tokenizer(parts.find_embedding(encoding), encoding=encoding, vocabulary=vocabulary)

    return tokenizer


def _tokenizer_of_file(encoder: Any, parts: TokenizerParts) -> T5Tokenizer:
    """Return the tokenizer that came with the encoder's weights."""
    encoding: T5Encoding = encoder.encoding
    return T5Tokenizer(
        parts.find_embedding(encoding),
        encoding=encoding,
        vocabulary=partial(sentence_pieces.sentence_pieces, encoder.vocabulary),
    )


def t5_xxl(encoding: T5Encoding, *, lora_numbers: tuple[int, ...] = (1,), home: str = HOME) -> TextEncoder:
    """Describe T5-XXL, as Google published it."""
    return t5_text_encoder(
        encoding,
        fits=reads_words,
        tokenizer=_tokenizer_with(t5_vocabulary),
        sizes=XXL_SIZES,
        lora_numbers=lora_numbers,
        home=home,
    )


def reads_words(shapes: Shapes) -> bool:
    """Return True for a T5 of Google's English vocabulary, by its size: neither of bytes nor of many languages."""
    return is_t5(shapes) and FEWEST_WORDS < shapes[EMBEDDING][0] < MOST_WORDS


def fits_first_t5(shapes: Shapes, *, is_base: bool) -> bool:
    """Return True for an encoder of the first T5, without gated layers: its base size, or any other."""
    if not is_t5(shapes):
        return False
    config = t5_config(shapes)
    return not config.is_gated and (config.num_layers == BASE_LAYERS) == is_base


def base_t5(encoding: T5Encoding, sizes: Mapping[str, T5Config]) -> TextEncoder:
    """Describe the encoder of the first T5 in its base size (Raffel et al. 2020, arXiv 1910.10683)."""
    fits = partial(fits_first_t5, is_base=True)
    return t5_text_encoder(encoding, fits=fits, tokenizer=_tokenizer_with(t5_vocabulary), sizes=sizes)


def first_t5(encoding: T5Encoding, sizes: Mapping[str, T5Config]) -> TextEncoder:
    """Describe the largest encoder of the first T5 (Raffel et al. 2020, arXiv 1910.10683), without gated layers."""
    fits = partial(fits_first_t5, is_base=False)
    return t5_text_encoder(encoding, fits=fits, tokenizer=_tokenizer_with(t5_vocabulary), sizes=sizes)


def pile_t5(encoding: T5Encoding, sizes: Mapping[str, T5Config]) -> TextEncoder:
    """Describe Pile-T5-XL (EleutherAI 2024): every layer has a bias of its own."""
    return t5_text_encoder(
        encoding,
        fits=fits_pile_t5,
        tokenizer=_tokenizer_with(pile_t5_vocabulary),
        sizes=sizes,
    )


def t5_with_vocabulary(
    encoding: T5Encoding,
    sizes: Mapping[str, T5Config],
    *,
    fits: Callable[[Shapes], bool] = is_t5,
    prefix: str = "",
) -> TextEncoder:
    """Describe an encoder whose files hold its tokenizer (umT5, mT5), in a checkpoint behind `text_encoders.` too.

    `prefix` is that of the tokenizer in checkpoints of several encoders.
    """
    return t5_text_encoder(
        encoding,
        fits=fits,
        tokenizer=_tokenizer_of_file,
        sizes=sizes,
        vocabulary=Vocabulary(
            names=(TOKENIZER,),
            in_checkpoint=f"text_encoders.{prefix}{TOKENIZER}",
            random=sentence_pieces.byte_vocabulary,
        ),
    )


def umt5_xxl() -> TextEncoder:
    """Describe umT5-XXL (Chung et al. 2023, arXiv 2304.09151): at least 512 tokens, masked, zeros behind the prompt."""
    encoding = T5Encoding(
        slot="umt5xxl",
        min_length=512,
        masks_padding=True,
        zeroes_padding=True,
        takes_embeddings=False,
    )
    fits = partial(fits_width, width=XXL_WIDTH, biased_everywhere=True)
    return t5_with_vocabulary(encoding, UMT5_XXL_SIZES, fits=fits)
