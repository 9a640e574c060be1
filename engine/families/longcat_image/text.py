"""The text encoder of LongCat-Image: the last layer of Qwen2.5-VL 7B. It reads images too.

Words in quotation marks are texts to be written in the image: their tokens are single characters.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from darkroom.engine.families.base import TokenizerParts
from darkroom.engine.families.text.qwen25_vl import qwen_7b
from darkroom.engine.text.chunk_encoding import Encoded, TokenWeights
from darkroom.engine.text.chunk_tokens import Chunks, ChunkTokenizer, TokenizerOptions
from darkroom.engine.text.qwen_encoding import QwenEncoder, template_end
from darkroom.engine.text.qwen_tokens import (
    COMPLETE_PROMPTS,
    END_TOKEN,
    IMAGE_PLACEHOLDER,
    IMAGE_TOKEN,
    PAD_TOKEN,
    qwen_vocabulary,
)

log = logging.getLogger(__name__)

NUM_TOKENS = 512  # of a prompt, without its template
TURNS = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n"
CAPTION = TURNS.format(
    "As an image captioning expert, generate a descriptive text prompt based on an image content, suitable for input "
    "to a text-to-image model."
)
EDIT = TURNS.format(
    "As an image editing expert, first analyze the content and attributes of the input image(s). Then, based on the "
    "user's editing instructions, clearly and precisely determine how to modify the given image(s), ensuring that only "
    "the specified parts are altered and all other aspects remain consistent with the original(s)."
)
ANSWER = "<|im_end|>\n<|im_start|>assistant\n"
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|‘[^‘’]*’|“[^“”]*”")
APOSTROPHE = re.compile(r"[a-zA-Z]+'[a-zA-Z]+")  # within a word, where it quotes nothing
STAND_IN = "\ue000"  # of an apostrophe, in no text


def parts_of(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a text in order, with True for those in quotation marks."""
    hidden = APOSTROPHE.sub(lambda word: word[0].replace("'", STAND_IN), text)
    behind = 0
    for match in QUOTED.finditer(hidden):
        if match.start() > behind:
            yield hidden[behind : match.start()].replace(STAND_IN, "'"), False
        yield match[0].replace(STAND_IN, "'"), True
        behind = match.end()
    if behind < len(hidden):
        yield hidden[behind:].replace(STAND_IN, "'"), False


class LongCatTokenizer(ChunkTokenizer):
    """Prompts -> one chunk of 512 tokens in the turns of a chat. Brackets are text: every weight is 1.

    An image takes the place of a mark `<|image_pad|>`, as `{"type": "image", "data": [1, H, W, 3] of 0..1}`.
    """

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: TokenizerOptions | None = None,
        disable_weights: bool = True,
        *,
        images: Sequence[torch.Tensor] = (),
        **kwargs: object,
    ) -> Chunks:
        """Return the chunk by slot. Prompts that begin with a turn stand without others around them."""
        tokens: list[object] = [*self._padded(text or " ")]
        if not text.startswith(COMPLETE_PROMPTS):
            encode = self.vocabulary().encode
            tokens = [*encode(EDIT + IMAGE_PLACEHOLDER if images else CAPTION), *tokens, *encode(ANSWER)]
            marks = [position for position, token in enumerate(tokens) if token == IMAGE_TOKEN]
            for position, pixels in zip(marks, images, strict=False):
                tokens[position] = {"type": "image", "data": pixels, "original_type": "image"}
        return {self.slot: [[(token, 1.0, 0) if return_word_ids else (token, 1.0) for token in tokens]]}

    def _padded(self, text: str) -> list[int]:
        """Return the first tokens of a text, and padding behind them."""
        encode = self.vocabulary().encode
        tokens = [
            token
            for part, is_quoted in parts_of(text)
            for piece in (part if is_quoted else (part,))
            for token in encode(piece)
        ]
        if len(tokens) > NUM_TOKENS:
            log.warning("prompt cut: %d tokens, the model reads %d", len(tokens), NUM_TOKENS)
        return tokens[:NUM_TOKENS] + [PAD_TOKEN] * (NUM_TOKENS - len(tokens))


class LongCatEncoder(QwenEncoder):
    """Qwen2.5-VL, of whose states those between the turns are the conditioning."""

    padding_position = 1.0

    def encode_weighted(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return the conditioning [1, T, D] of the user's turn. Only the first chunk is read, and no weights."""
        tokens = [token[0] for token in chunks[0]]
        cond = self.encode(tokens, layer_idx)
        cond = cond[:, max(0, template_end(tokens, cond.shape[1])) :]
        ends = [position for position, token in enumerate(tokens) if isinstance(token, int) and token == END_TOKEN]
        num_behind = len(tokens) - ends[-1] if ends else 0
        is_cut = 0 < num_behind < cond.shape[1]
        return Encoded(cond[:, :-num_behind] if is_cut else cond, None)


def _tokenizer(encoder: LongCatEncoder, parts: TokenizerParts) -> LongCatTokenizer:
    return LongCatTokenizer(None, slot=encoder.encoding.slot, vocabulary=qwen_vocabulary, pad_token=PAD_TOKEN)


QWEN = replace(qwen_7b(CAPTION + "{}" + ANSWER, LongCatEncoder), tokenizer=_tokenizer)
