"""The text encoder of ACE-Step: umT5 in its base size for the tags, and tokens of the lyrics beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from darkroom.engine.families.base import Shapes, TextEncoder, TokenizerParts, Vocabulary
from darkroom.engine.families.text.t5 import BASE_LAYERS, t5_with_vocabulary
from darkroom.engine.layers.t5 import T5Config, is_biased_everywhere, t5_config
from darkroom.engine.text import sentence_pieces
from darkroom.engine.text.chunk_tokens import Chunks, ChunkTokenizer, TokenizerOptions
from darkroom.engine.text.lyrics import LINE_END, START_TOKEN, letter_lyrics, lyrics_vocabulary
from darkroom.engine.text.t5_encoding import T5Encoder, T5Encoding
from darkroom.engine.text.t5_tokens import T5Tokenizer
from darkroom.engine.text.vocabulary import TextVocabulary

LYRICS = "lyrics"  # slot of their tokens
LYRICS_OPTION = "conditioning_lyrics"  # ComfyUI's name of them in a conditioning
LYRICS_TENSOR, LYRICS_FILE = "lyrics_vocab", "ace_lyrics_vocab.json"
ENCODING = T5Encoding(slot="umt5base", embedding_width=768, min_length=1, masks_padding=True)


class AceEncoder(T5Encoder):
    """An encoder of tags, with the tokens of the lyrics as an option of the conditioning."""

    token_options: ClassVar[Mapping[str, str]] = {LYRICS: LYRICS_OPTION}


class AceTokenizer(T5Tokenizer):
    """Tags and lyrics -> a chunk of tokens each, by slot. `lyrics` makes the tokenizer of lyrics."""

    def __init__(self, *args: Any, lyrics: Callable[[], TextVocabulary], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lyrics = ChunkTokenizer(
            None, slot=LYRICS, vocabulary=lyrics, pad_token=LINE_END, start_token=START_TOKEN, min_length=1
        )

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: TokenizerOptions | None = None,
        disable_weights: bool = False,
        lyrics: str = "",
        **kwargs: Any,
    ) -> Chunks:
        """Return the chunks by slot, as `ChunkTokenizer.tokenize_with_weights`, with those of the lyrics."""
        options = (return_word_ids, tokenizer_options, disable_weights)
        return super().tokenize_with_weights(text, *options) | self.lyrics.tokenize_with_weights(lyrics, *options)


def _fits(shapes: Shapes) -> bool:
    return is_biased_everywhere(shapes) and t5_config(shapes).num_layers == BASE_LAYERS


def _lyrics_of(content: bytes | None) -> TextVocabulary:
    """Return the tokenizer of lyrics. Raises ValueError where there is none."""
    if content is None:
        raise ValueError(
            f"lyrics: there is no tokenizer for them; expected ACE-Step's vocab.json as {LYRICS_FILE!r} in the folder "
            "of the checkpoint or text encoder, or no lyrics"
        )
    return lyrics_vocabulary(content)


def _tokenizer(encoder: Any, parts: TokenizerParts) -> AceTokenizer:
    encoding: T5Encoding = encoder.encoding
    return AceTokenizer(
        parts.find_embedding(encoding),
        encoding=encoding,
        vocabulary=partial(sentence_pieces.sentence_pieces, encoder.vocabulary),
        lyrics=partial(_lyrics_of, encoder.second_vocabulary),
    )


UMT5_BASE: TextEncoder = replace(
    t5_with_vocabulary(
        ENCODING,
        {
            "full": T5Config(
                num_layers=12, width=768, heads=12, inner_width=2048, vocabulary_size=256384, is_biased_everywhere=True
            ),
            "small": T5Config(
                num_layers=12, width=64, heads=2, inner_width=128, vocabulary_size=2048, is_biased_everywhere=True
            ),
        },
        fits=_fits,
    ),
    encoder_type=AceEncoder,
    tokenizer=_tokenizer,
    second_vocabulary=Vocabulary(
        names=(LYRICS_TENSOR,),
        in_checkpoint=f"text_encoders.{LYRICS_TENSOR}",
        random=letter_lyrics,
        beside=LYRICS_FILE,
    ),
)
