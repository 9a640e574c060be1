"""The text encoders of HunyuanVideo: Llama 3 for the prompt and images, CLIP ViT-L for the pooled output.

`T` tokens, `D` width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from darkroom.engine.families.base import TokenizerParts, Vocabulary
from darkroom.engine.families.text.clip_l import clip_l
from darkroom.engine.families.text.language_model import language_text_encoder
from darkroom.engine.layers.language_model import LLAMA3, LanguageModelConfig
from darkroom.engine.text.chunk_encoding import Encoded, TokenWeights
from darkroom.engine.text.chunk_tokens import Chunks, TokenizerOptions
from darkroom.engine.text.clip_l import CLIP_L_ENCODING
from darkroom.engine.text.language_encoding import LanguageEncoder, LanguageEncoding
from darkroom.engine.text.language_tokens import LanguageTokenizer
from darkroom.engine.text.llama_tokens import PAD_TOKEN as TURN_END
from darkroom.engine.text.llama_tokens import START_TOKEN, byte_tokenizer
from darkroom.engine.text.vocabulary import stored_vocabulary

SLOT = "llama"
TOKENIZER = "tokenizer_json"
PAD_TOKEN, IMAGE_TOKEN = 128258, 128257
USER_TURN = (128006, 882, 128007)  # the header of the user's turn
TWO_LINES = 271
LAYER = -3  # whose output is the conditioning unless a node asks for another one
MASK = "attention_mask"
TURN = "<|start_header_id|>{}<|end_header_id|>\n\n"
DESCRIBE = (  # what the network was trained with (Tencent's code of HunyuanVideo)
    "Describe the video by detailing the following aspects: 1. The main content and theme of the video.2. The color, "
    "shape, size, texture, quantity, text, and spatial relationships of the objects.3. Actions, events, behaviors "
    "temporal relationships, physical movement changes of the objects.4. background environment, light, style and "
    "atmosphere.5. camera angles, movements, and transitions used in the video:<|eot_id|>"
)
TEMPLATE = TURN.format("system") + DESCRIBE + TURN.format("user") + "{}<|eot_id|>"
Images = list[tuple[int, int, int]]  # first row, end, and step of the rows that are kept


class PromptTokenizer(LanguageTokenizer):
    """The tokenizer of Llama, with the tokens of images in the places of their marks."""

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: TokenizerOptions | None = None,
        disable_weights: bool = False,
        llama_template: str | None = None,
        *,
        image_embeds: torch.Tensor | None = None,
        image_interleave: int = 1,
        **kwargs: object,
    ) -> Chunks:
        """Return the chunk by slot. `image_embeds` [B, N, D] are images, `image_interleave` keeps every so many."""
        chunks = super().tokenize_with_weights(
            text, return_word_ids, tokenizer_options, disable_weights, llama_template=llama_template
        )
        (chunk,) = chunks[self.slot]
        places = [place for place, (token, *_) in enumerate(chunk) if token == IMAGE_TOKEN]
        for place, image in zip(places, () if image_embeds is None else image_embeds, strict=False):
            seen = {
                "type": "embedding", "data": image, "original_type": "image", "image_interleave": image_interleave,
            }  # fmt: skip
            chunk[place] = (seen, *chunk[place][1:])
        return chunks


def prompt_rows(tokens: Sequence[object], num_rows: int) -> tuple[slice, Images]:
    """Return the rows of the prompt among those of a chunk in a template, and those of the template's images.

    As in ComfyUI, everything is the prompt where no user's turn begins.
    """
    start, end, before, within = 0, num_rows, 0, 0  # rows that images take beyond their token
    is_open = False
    images: Images = []
    for place, token in enumerate(tokens):
        if isinstance(token, dict):
            size = int(token["data"].shape[0])
            if start == 0:
                first = place + before
                images.append((first, first + size, int(token.get("image_interleave", 1))))
                before += size - 1
            elif is_open:
                within += size - 1
        elif not isinstance(token, torch.Tensor):
            if tuple(tokens[place : place + 3]) == USER_TURN:
                start, end, is_open = place + 2, -1, True
            if token == TURN_END and is_open:
                end, is_open = place + 1, False
    if num_rows > start + 2 and tokens[start + 1] == TWO_LINES:
        start += 2
    return slice(start + before, end + before + within), images


class PromptEncoder(LanguageEncoder):
    """Llama 3, whose conditioning is the part of the prompt, behind what images of the template gave."""

    def encode_weighted(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        tokens = [token[0] for token in chunks[0]]
        self._check_images(tokens)
        plain = [
            [(token["data"] if isinstance(token, dict) else token, weight) for token, weight, *_ in chunk]
            for chunk in chunks
        ]
        cond, pooled, options = super().encode_weighted(plain, layer_idx=layer_idx, project_pooled=project_pooled)
        rows, images = prompt_rows(tokens, cond.shape[1])
        mask = options[MASK][:, rows]
        kept = [cond[:, start:end:step] for start, end, step in images]
        return Encoded(torch.cat([*kept, cond[:, rows]], dim=1), pooled, {} if mask.all() else {MASK: mask})

    def _check_images(self, tokens: Sequence[object]) -> None:
        """Raise ValueError for an image of another width than the language model's tokens."""
        width: int = self.transformer.get_input_embeddings().embedding_dim
        for token in tokens:
            if isinstance(token, dict) and token["data"].shape[-1] != width:
                raise ValueError(
                    "clip_vision_output: its image encoder does not fit the text encoder; got tokens of width "
                    f"{token['data'].shape[-1]}, expected {width} (llava_llama3_vision beside llava_llama3)"
                )


def prompt_and_pooled(encoded: Mapping[str, Encoded]) -> Encoded:
    """Return the tokens of Llama, and the pooled output of CLIP."""
    return Encoded(encoded[SLOT].cond, encoded["l"].pooled, encoded[SLOT].options)


def _tokenizer(encoder: PromptEncoder, parts: TokenizerParts) -> PromptTokenizer:
    return PromptTokenizer(
        parts.find_embedding(encoder.encoding),
        encoding=encoder.encoding,
        vocabulary=partial(stored_vocabulary, encoder.vocabulary or b""),
    )


CLIP_L = clip_l(CLIP_L_ENCODING)
LLAMA = replace(
    language_text_encoder(
        LanguageEncoding(
            slot=SLOT, embedding_width=4096, layer=LAYER, start_token=START_TOKEN, pad_token=PAD_TOKEN,
            template=TEMPLATE, takes_embeddings=True,
        ),
        kind=LLAMA3, encoder_type=PromptEncoder,
        sizes={
            "full": LanguageModelConfig(
                kind=LLAMA3, num_layers=32, width=4096, heads=32, key_heads=8, inner_width=14336, vocabulary_size=128320
            ),
            "small": LanguageModelConfig(
                kind=LLAMA3, num_layers=4, width=32, heads=2, key_heads=1, inner_width=64, vocabulary_size=128320
            ),
        },
    ),
    tokenizer=_tokenizer,
    vocabulary=Vocabulary(
        names=(TOKENIZER,), in_checkpoint=f"text_encoders.{TOKENIZER}", random=byte_tokenizer,
        beside="llama_tokenizer.json",
    ),
)  # fmt: skip
