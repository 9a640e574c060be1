"""The text encoder of Anima: Qwen3 0.6B, and T5's tokens of the same prompt, which the model's text adapter reads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from darkroom.engine.families.base import Shapes, TextEncoder
from darkroom.engine.families.layouts import behind_first, saved_behind
from darkroom.engine.families.text.language_model import fits_kind, language_text_encoder
from darkroom.engine.layers.language_model import EMBEDDING, QUERIES, QWEN3, LanguageModelConfig
from darkroom.engine.text.chunk_tokens import Chunks, ChunkTokenizer, TokenizerOptions
from darkroom.engine.text.language_encoding import LanguageEncoder, LanguageEncoding
from darkroom.engine.text.language_tokens import LanguageTokenizer, qwen3
from darkroom.engine.text.qwen_tokens import PAD_TOKEN
from darkroom.engine.text.t5_encoding import END_TOKEN
from darkroom.engine.text.t5_encoding import PAD_TOKEN as T5_PAD_TOKEN
from darkroom.engine.text.t5_tokens import t5_vocabulary

HIDDEN_SIZE = 1024
KEYS = "model.layers.0.self_attn.k_proj.weight"
PREFIX = "cond_stage_model.qwen3_06b.transformer."
T5_SLOT = "t5xxl"
T5_TOKENS, T5_WEIGHTS = "t5xxl_ids", "t5xxl_weights"  # ComfyUI's names of them in a conditioning, [N] each


class AnimaEncoder(LanguageEncoder):
    """A language model, with T5's tokens and their weights as options of the conditioning."""

    weighted_token_options: ClassVar = {T5_SLOT: (T5_TOKENS, T5_WEIGHTS)}


class AnimaTokenizer(LanguageTokenizer):
    """Prompts -> a chunk of tokens for the language model, all of weight 1, and one of T5's with their weights."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.t5 = ChunkTokenizer(
            None, slot=T5_SLOT, vocabulary=t5_vocabulary, pad_token=T5_PAD_TOKEN, end_token=END_TOKEN, min_length=1
        )

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: TokenizerOptions | None = None,
        disable_weights: bool = False,
        llama_template: str | None = None,
        **kwargs: object,
    ) -> Chunks:
        """Return the chunks by slot, as `ChunkTokenizer.tokenize_with_weights`."""
        options = (return_word_ids, tokenizer_options, disable_weights)
        own = super().tokenize_with_weights(text, *options, llama_template)
        unweighted: Chunks = {
            slot: [[(token, 1.0, *rest) for token, _, *rest in chunk] for chunk in chunks]
            for slot, chunks in own.items()
        }
        return unweighted | self.t5.tokenize_with_weights(text, *options)

    def untokenize(self, token_weight_pair: Any) -> list[tuple[Any, str]]:
        """Return each of T5's tokens, with its weight, beside its piece of the vocabulary."""
        return self.t5.untokenize(token_weight_pair)


def fits(shapes: Shapes) -> bool:
    """Return True for a Qwen3 whose keys are as wide as its tokens and its queries twice that: that of 0.6 billion."""
    size = shapes[EMBEDDING][1] if EMBEDDING in shapes else 0
    return fits_kind(shapes, kind=QWEN3) and shapes[KEYS][0] == size and shapes[QUERIES][0] == 2 * size


def _in_checkpoints(encoder: TextEncoder) -> TextEncoder:
    """Return the encoder as checkpoints of this family have it, whose prefix ComfyUI does not name anew."""
    names = behind_first((PREFIX,), EMBEDDING)
    network = encoder.network
    return replace(
        encoder,
        network=replace(
            network,
            layouts=(names, *network.layouts),
            in_checkpoint=(names, *network.in_checkpoint),
            saved=partial(saved_behind, PREFIX),
        ),
    )


QWEN: TextEncoder = _in_checkpoints(
    language_text_encoder(
        LanguageEncoding(
            slot="qwen3_06b", embedding_width=HIDDEN_SIZE, pad_token=PAD_TOKEN, takes_embeddings=True,
        ),
        kind=QWEN3, fits=fits, vocabulary=qwen3, encoder_type=AnimaEncoder,
        tokenizer_type=AnimaTokenizer,
        sizes={
            "full": LanguageModelConfig(
                kind=QWEN3, num_layers=28, width=HIDDEN_SIZE, heads=16, key_heads=8, inner_width=3072,
                vocabulary_size=151936, norms_queries=True,
            ),
            "small": LanguageModelConfig(
                kind=QWEN3, num_layers=2, width=128, heads=2, key_heads=1, inner_width=128, vocabulary_size=151936,
                norms_queries=True,
            ),
        },
    )
)  # fmt: skip
