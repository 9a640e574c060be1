"""Prompts as tokens of Qwen2.5, by its byte-level pairs (Sennrich et al. 2016, arXiv 1508.07909), in a chat template.

The merge table beside this file (`qwen2_merges.txt.gz`) is Alibaba Cloud's; its licence is stored next to it. The
vocabulary is derived from the table. It is loaded at the first prompt.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import torch

from engine.text.clip_tokens import EMBEDDING_PREFIX, byte_letters

# Behind the pairs, in the order of their ids.
MARKS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|img|>", "<|endofimg|>", "<|meta|>",
    "<|endofmeta|>",
)  # fmt: skip
QWEN3_MARKS = (*MARKS[:-4], "<tool_response>", "</tool_response>", "<think>", "</think>")
PAD_TOKEN, START_TOKEN, PICTURE_TOKEN = 151643, 151644, 151655
USER_TOKEN, NEW_LINE_TOKEN = 872, 198
WORDS = (  # Qwen2's way to part a text into words
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
COMPLETE_PROMPTS = ("<|im_start|>", "<|start_header_id|>")  # the beginnings of prompts that no template surrounds


@cache
def qwen_vocabulary(marks: tuple[str, ...] = MARKS) -> Any:
    """Return Qwen2.5's tokenizer of the tokenizers library, with the marks of a model behind the pairs."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers  # for this encoder alone

    packed = resources.files("engine.text").joinpath("qwen2_merges.txt.gz").read_bytes()
    lines = gzip.decompress(packed).decode("utf-8").splitlines()
    merges = [(first, second) for first, _, second in (line.partition(" ") for line in lines)]
    pieces = [*byte_letters().values(), *(first + second for first, second in merges)]
    made = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=merges))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in marks])
    return made


class QwenTokenizer:
    """Prompts -> one chunk of tokens, in the template of a chat. Brackets are text: every weight is 1.

    A picture takes the place of a mark `<|image_pad|>`, as `{"type": "image", "data": [1, H, W, 3] of 0..1}`.
    `template` surrounds prompts, `picture_template` those that come with pictures; `{}` stands for the prompt.
    """

    def __init__(self, *, slot: str, template: str, picture_template: str) -> None:
        self.slot = slot
        self.template = template
        self.picture_template = picture_template

    @property
    def key(self) -> str:
        """ComfyUI's name of the encoder."""
        return self.slot

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: dict[str, Any] | None = None,
        *,
        llama_template: str | None = None,
        images: Sequence[torch.Tensor] = (),
        **kwargs: Any,
    ) -> dict[str, list[list[Any]]]:
        """Return the chunk by slot (`{"qwen25_7b": [chunk]}`), of (token, weight), or (token, weight, word id).

        `llama_template` is a template in place of the tokenizer's. Options as nodes set them: `qwen25_7b_min_length`,
        `qwen25_7b_min_padding` (tokens of padding at the end).
        """
        if not text.startswith(COMPLETE_PROMPTS):
            own = self.picture_template if len(images) else self.template
            text = (own if llama_template is None else llama_template).format(text)
        options = tokenizer_options or {}
        chunk: list[tuple[Any, float, int]] = [
            (token, 1.0, number) for number, word in enumerate(self._words(text), start=1) for token in word
        ]
        pad = (PAD_TOKEN, 1.0, 0)
        chunk.extend([pad] * (options.get(f"{self.slot}_min_padding") or 0))
        chunk.extend([pad] * (options.get(f"{self.slot}_min_length", 1) - len(chunk)))
        pictures = iter(images)
        for place, (token, weight, number) in enumerate(chunk):
            picture = next(pictures, None) if token == PICTURE_TOKEN else None
            if picture is not None:
                chunk[place] = ({"type": "image", "data": picture, "original_type": "image"}, weight, number)
        if return_word_ids:
            return {self.slot: [list(chunk)]}
        return {self.slot: [[(token, weight) for token, weight, _ in chunk]]}

    def untokenize(self, token_weight_pair: list[Any]) -> list[tuple[object, str]]:
        return [(pair, qwen_vocabulary().id_to_token(pair[0])) for pair in token_weight_pair]

    def state_dict(self) -> dict[str, object]:
        return {}

    def _words(self, text: str) -> list[list[int]]:
        """Return the tokens of the text's parts, cut where other tokenizers look for embeddings, as in ComfyUI."""
        plain = text.replace("\\)", ")").replace("\\(", "(")
        first, *others = re.split(rf" {EMBEDDING_PREFIX}|\n{EMBEDDING_PREFIX}", plain)
        parts = [first, *(EMBEDDING_PREFIX + other for other in others)]
        return [qwen_vocabulary().encode(part, add_special_tokens=False).ids for part in parts if part]
