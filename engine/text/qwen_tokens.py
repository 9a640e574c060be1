"""Prompts as tokens of Qwen2.5, by its byte-level pairs (Sennrich et al. 2016, arXiv 1508.07909), in a chat template.

The merge table beside this file (`qwen2_merges.txt.gz`) is Alibaba Cloud's; its licence is stored next to it. The
vocabulary is derived from the table. It is loaded at the first prompt.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources

import torch

from darkroom.engine.text.chunk_tokens import Chunks, ChunkTokenizer, TokenizerOptions
from darkroom.engine.text.clip_tokens import byte_letters
from darkroom.engine.text.vocabulary import LibraryVocabulary

# Behind the pairs, in the order of their ids.
MARKS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|img|>", "<|endofimg|>", "<|meta|>",
    "<|endofmeta|>",
)  # fmt: skip
QWEN3_MARKS = (*MARKS[:-4], "<tool_response>", "</tool_response>", "<think>", "</think>")
PAD_TOKEN, START_TOKEN, END_TOKEN, IMAGE_TOKEN = 151643, 151644, 151645, 151655
USER_TOKEN, NEW_LINE_TOKEN = 872, 198
WORDS = (  # Qwen2's way to part a text into words
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"
IMAGE_PLACEHOLDER = "<|vision_start|><|image_pad|><|vision_end|>"
COMPLETE_PROMPTS = ("<|im_start|>", "<|start_header_id|>")  # the beginnings of prompts that no template surrounds


@cache
def qwen_vocabulary(marks: tuple[str, ...] = MARKS) -> LibraryVocabulary:
    """Return Qwen2.5's tokenizer, with the marks of a model behind the pairs."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers  # here alone

    packed = resources.files("darkroom.engine.text").joinpath("qwen2_merges.txt.gz").read_bytes()
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
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in marks])
    return LibraryVocabulary(made)


class QwenTokenizer(ChunkTokenizer):
    """Prompts -> one chunk of tokens, in the template of a chat. Brackets are text: every weight is 1.

    An image takes the place of a mark `<|image_pad|>`, as `{"type": "image", "data": [1, H, W, 3] of 0..1}`.
    `template` surrounds prompts, `image_template` those that come with images; `{}` stands for the prompt.
    With `repeats_images` the latter names as many images as there are, else one.
    """

    tells_of_thinking = True  # where nothing is to be thought over first

    def __init__(
        self,
        *,
        slot: str,
        template: str,
        image_template: str,
        vocabulary: Callable[[], LibraryVocabulary] = qwen_vocabulary,
        repeats_images: bool = False,
    ) -> None:
        super().__init__(None, slot=slot, vocabulary=vocabulary, pad_token=PAD_TOKEN, min_length=1)
        self._library = vocabulary
        self.template = template
        self.image_template = image_template
        self.repeats_images = repeats_images

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: TokenizerOptions | None = None,
        disable_weights: bool = True,
        *,
        llama_template: str | None = None,
        images: Sequence[torch.Tensor] = (),
        **kwargs: object,
    ) -> Chunks:
        """Return the chunk by slot, as `ChunkTokenizer.tokenize_with_weights`, whatever `disable_weights` is.

        `llama_template` is a template in place of the tokenizer's. `image` [B, H, W, 3] is the images as one tensor,
        `skip_template` leaves the prompt as it is, `thinking` of False says that nothing is to be thought over first,
        with `prevent_empty_text` an empty prompt is a space.
        """
        text = text or (" " if kwargs.get("prevent_empty_text") else "")
        image = kwargs.get("image")
        if isinstance(image, torch.Tensor) and not images:
            images = torch.split(image, 1)
        if not text.startswith(COMPLETE_PROMPTS) and not kwargs.get("skip_template"):
            text = (self.template_for(text, len(images)) if llama_template is None else llama_template).format(text)
            text += EMPTY_THOUGHT if self.tells_of_thinking and kwargs.get("thinking") is False else ""
        chunks = super().tokenize_with_weights(text, return_word_ids, tokenizer_options, disable_weights=True)
        (chunk,) = chunks[self.slot]
        places = [place for place, (token, *_) in enumerate(chunk) if token == IMAGE_TOKEN]
        for place, pixels in zip(places, map(self.seen, images), strict=False):
            chunk[place] = ({"type": "image", "data": pixels, "original_type": "image"}, *chunk[place][1:])
        return chunks

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of tokens, without marks unless `skip_special_tokens` is False."""
        return self._library().decode(tokens, skip_special_tokens=skip_special_tokens)

    def seen(self, image: torch.Tensor) -> torch.Tensor:
        """Return an image [1, H, W, C] of 0..1 as the encoder is given it."""
        return image

    def template_for(self, text: str, num_images: int) -> str:
        """Return the template of a prompt with this number of images, `{}` for the prompt."""
        if not num_images:
            return self.template
        shown = num_images if self.repeats_images else 1
        return self.image_template.replace(IMAGE_PLACEHOLDER, IMAGE_PLACEHOLDER * shown, 1)
