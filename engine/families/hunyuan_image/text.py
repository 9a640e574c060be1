"""The text encoders of HunyuanImage 2.1: Qwen2.5-VL for the prompt, and ByT5 for the words that the image shows.

ByT5 is Glyph-ByT5's (Liu et al. 2024, arXiv 2403.09622), and reads what the prompt has in quotation marks. It may be
left out. `T` tokens, `D` width.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from darkroom.engine.families.base import Shapes, TokenizerParts
from darkroom.engine.families.text.qwen25_vl import SLOT, UNANSWERED_TEMPLATE, qwen_7b
from darkroom.engine.families.text.t5 import t5_text_encoder
from darkroom.engine.layers.t5 import ATTENTION, T5Config
from darkroom.engine.text.byte_tokens import ByteVocabulary
from darkroom.engine.text.chunk_encoding import Encoded, TokenWeights
from darkroom.engine.text.chunk_tokens import Chunks, TokenizerOptions
from darkroom.engine.text.qwen_encoding import QwenEncoder, template_end
from darkroom.engine.text.qwen_tokens import PAD_TOKEN
from darkroom.engine.text.t5_encoding import T5Encoder, T5Encoding
from darkroom.engine.text.t5_tokens import T5Tokenizer

GLYPH_SLOT, GLYPH_KEY = "byt5", "byt5_small"
GLYPH_ROWS = 384  # of ByT5 small's keys
CONTEXT_DIM, GLYPH_WIDTH = 3584, 1472
LAYER = -3  # whose output is the conditioning unless a node asks for another one
LESS_TOKEN = 27  # "<", with which prompts of the refiner begin, in the template of another language model
REFINER_END = 36  # tokens of that template before the prompt
QUOTED = (re.compile(r'"(.*?)"'), re.compile(r"\u2018(.*?)\u2019"), re.compile(r"\u201c(.*?)\u201d"))
SHOWN = 'Text "{}". '
GLYPHS = "conditioning_byt5small"  # ComfyUI's name of ByT5's states in a conditioning


class PromptEncoder(QwenEncoder):
    """Qwen2.5-VL whose third layer from the end gives the conditioning, with a mask where there is padding."""

    def encode(self, chunk: Sequence[object], layer_idx: int | None) -> torch.Tensor:
        return super().encode(chunk, LAYER if layer_idx is None else layer_idx)

    def encode_weighted(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return the conditioning [1, T, D] of what follows the template's beginning, and its mask [1, T] of tokens."""
        tokens = [token[0] for token in chunks[0]]
        cond = self.encode(tokens, layer_idx)
        is_refined = tokens[0] == LESS_TOKEN and len(tokens) > REFINER_END
        end = REFINER_END if is_refined else template_end(tokens, cond.shape[1])
        mask = torch.ones(1, cond.shape[1], dtype=torch.long, device=cond.device)
        numbers = [token if isinstance(token, int) else None for token in tokens]
        if PAD_TOKEN in numbers:
            mask[:, numbers.index(PAD_TOKEN) - len(numbers) :] = 0
        mask = mask[:, end:]
        return Encoded(cond[:, end:], None, {} if mask.all() else {"attention_mask": mask})


@dataclass(frozen=True, slots=True)
class GlyphEncoding(T5Encoding):
    """Settings with which ByT5 is used: its module has another name than its slot."""

    @property
    def key(self) -> str:
        return GLYPH_KEY


class GlyphTokenizer(T5Tokenizer):
    """The words of a prompt in quotation marks -> the chunk of ByT5; nothing for a prompt without any."""

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: TokenizerOptions | None = None,
        disable_weights: bool = False,
        **kwargs: object,
    ) -> Chunks:
        shown = [words for quotes in QUOTED for words in quotes.findall(text)]
        if not shown:
            return {}
        sentence = "".join(SHOWN.format(words) for words in shown)
        return super().tokenize_with_weights(
            sentence, return_word_ids, tokenizer_options=tokenizer_options, disable_weights=disable_weights
        )


def prompt_and_glyphs(encoded: Mapping[str, Encoded]) -> Encoded:
    """Return the states of the prompt, with those of the words to draw where there are any.

    Raises ValueError for a set without the encoder of prompts.
    """
    prompt, glyphs = encoded.get(SLOT), encoded.get(GLYPH_SLOT)
    if prompt is None:
        raise ValueError("clip: the encoder of prompts is missing; got ByT5 alone, expected Qwen2.5-VL beside it")
    if glyphs is None:
        return prompt
    return Encoded(prompt.cond, prompt.pooled, {**prompt.options, GLYPHS: glyphs.cond})


def fits_glyphs(shapes: Shapes) -> bool:
    """Return True for an encoder with as many keys as ByT5 small: ComfyUI's rule."""
    return shapes.get(ATTENTION.format(0) + "k.weight", ())[:1] == (GLYPH_ROWS,)


def _glyph_tokenizer(encoder: T5Encoder, parts: TokenizerParts) -> GlyphTokenizer:
    encoding = encoder.encoding
    return GlyphTokenizer(parts.find_embedding(encoding), encoding=encoding, vocabulary=ByteVocabulary)


PROMPT = qwen_7b(UNANSWERED_TEMPLATE, PromptEncoder, num_small_layers=4)
GLYPH = t5_text_encoder(
    GlyphEncoding(slot=GLYPH_SLOT, embedding_width=GLYPH_WIDTH, min_length=1, masks_padding=True, zeroes_padding=True),
    fits=fits_glyphs,
    tokenizer=_glyph_tokenizer,
    sizes={
        "full": T5Config(num_layers=12, width=GLYPH_WIDTH, heads=6, inner_width=3584, vocabulary_size=1510),
        "small": T5Config(num_layers=2, width=64, heads=6, inner_width=64, vocabulary_size=1510),
    },
)
