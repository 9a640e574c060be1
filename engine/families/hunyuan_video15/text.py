"""The text encoders of HunyuanVideo 1.5: those of HunyuanImage 2.1, with the prompt in a template of videos."""

from __future__ import annotations

from dataclasses import replace

from darkroom.engine.families.base import TokenizerParts
from darkroom.engine.families.hunyuan_image.text import PromptEncoder
from darkroom.engine.families.text.qwen25_vl import ANSWER, SYSTEM, qwen_7b
from darkroom.engine.text.chunk_tokens import Chunks, TokenizerOptions
from darkroom.engine.text.qwen_tokens import QwenTokenizer

# What the network was trained with (Tencent's code of HunyuanVideo 1.5).
DESCRIBE = (
    "You are a helpful assistant. Describe the video by detailing the following aspects:\n"
    "1. The main content and theme of the video.\n"
    "2. The color, shape, size, texture, quantity, text, and spatial relationships of the objects.\n"
    "3. Actions, events, behaviors temporal relationships, physical movement changes of the objects.\n"
    "4. background environment, light, style and atmosphere.\n"
    "5. camera angles, movements, and transitions used in the video."
)
TEMPLATE = SYSTEM.format(DESCRIBE) + ANSWER


class VideoPromptTokenizer(QwenTokenizer):
    """Prompts -> one chunk of tokens in a template. An empty prompt is one space."""

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: TokenizerOptions | None = None,
        disable_weights: bool = True,
        **kwargs: object,
    ) -> Chunks:
        return super().tokenize_with_weights(text or " ", return_word_ids, tokenizer_options, disable_weights, **kwargs)  # type: ignore[arg-type]


def _tokenizer(encoder: PromptEncoder, parts: TokenizerParts) -> VideoPromptTokenizer:
    encoding = encoder.encoding
    return VideoPromptTokenizer(slot=encoding.slot, template=encoding.template, image_template=encoding.image_template)


PROMPT = replace(qwen_7b(TEMPLATE, PromptEncoder, num_small_layers=4), tokenizer=_tokenizer)
