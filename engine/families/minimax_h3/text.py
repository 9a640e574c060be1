"""The text encoder of MiniMax H3: the first 50 layers of Qwen3-VL 32B, without a chat template. It sees images too.

Images and videos come before the prompt, each behind its number (`<Picture 1>: `), videos in pairs of frames behind
their time. `T` tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from darkroom.engine.families.base import Shapes, TextEncoder
from darkroom.engine.families.minimax_h3.conditions import TAGS
from darkroom.engine.families.minimax_h3.layout import Source
from darkroom.engine.families.text.qwen3_vl import qwen3_vl, qwen3_vl_config
from darkroom.engine.layers.language_model import EMBEDDING
from darkroom.engine.layers.qwen3_vl_vision import MARK as VISION_MARK
from darkroom.engine.layers.qwen3_vl_vision import Qwen3VlVisionConfig
from darkroom.engine.layers.vision_language_model import VISION_PREFIX
from darkroom.engine.text.chunk_encoding import Encoded, TokenWeights
from darkroom.engine.text.chunk_tokens import Chunks, TokenizerOptions, Weighted
from darkroom.engine.text.image_places import SeenImage
from darkroom.engine.text.qwen_encoding import PAIR, QwenEncoder, QwenEncoding
from darkroom.engine.text.qwen_tokens import PAD_TOKEN, QwenTokenizer

SLOT = "qwen3vl_32b"
HIDDEN_SIZE = 5120
NUM_LAYERS = 50  # of 64 that the published model has
LAST_LAYER = f"model.layers.{NUM_LAYERS - 1}.self_attn.q_proj.weight"
FINAL_NORM = "model.norm.weight"
VISION_START, VISION_END = 151652, 151653  # tokens around an image
SEEN_PER_SECOND = 2  # frames of a video, of which two are seen as one


@dataclass(frozen=True, slots=True)
class SeenItem:
    """An image [1, H, W, C], the frames [F, H, W, C] of a video with their times [s], or the number of some audio."""

    kind: str
    pixels: torch.Tensor | None = None
    seconds: tuple[float, ...] = ()


class MiniMaxH3Tokenizer(QwenTokenizer):
    """Prompts -> one chunk of tokens, with what is seen before the prompt. Brackets are text: every weight is 1."""

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
        """Return the chunk by slot. `images` [1, H, W, C] are seen before the prompt.

        `minimax_ref_items` are seen instead: dictionaries with a `type` (`image`, `video`, `audio`), its `data`, and
        `timestamps` [s] of a video's frames, as ComfyUI's nodes give them. Templates have no effect.
        """
        options: Mapping[str, Any] = kwargs
        given: Sequence[Mapping[str, Any]] = options.get("minimax_ref_items") or ()
        items = [_seen_item(item) for item in given] or [SeenItem("image", image) for image in images]
        chunk: list[Weighted] = []
        counts: dict[str, int] = {}
        for item in items:
            counts[item.kind] = counts.get(item.kind, 0) + 1
            chunk += self._seen(item, counts[item.kind])
        chunk += self._tokens(text)
        chunk = chunk or [(PAD_TOKEN, 1.0, 0)]
        return {self.slot: [[token if return_word_ids else token[:2] for token in chunk]]}

    def _seen(self, item: SeenItem, number: int) -> list[Weighted]:
        """Return the tokens of something seen, with its number among those of its kind."""
        if item.kind == "audio":
            return self._tokens(f"<Audio {number}>: ")
        if item.kind == "image":
            return [*self._tokens(f"<Picture {number}>: "), *_image(item.pixels)]
        tokens = self._tokens(f"<Video {number}>: ")
        for pair, seconds in _pairs(item):
            tokens += [*self._tokens(f"<{seconds:.1f} seconds>"), *_image(pair, is_pair=True)]
        return tokens

    def _tokens(self, text: str) -> list[Weighted]:
        """Return the tokens of a text, with textual inversions among them; none for an empty one."""
        if not text:
            return []
        (chunk,) = super().tokenize_with_weights(text, return_word_ids=True, skip_template=True)[self.slot]
        return [(token[0], 1.0, 0) for token in chunk]


def _seen_item(item: Mapping[str, Any]) -> SeenItem:
    seconds = item.get("timestamps")
    frames: torch.Tensor | None = item.get("data")
    if item["type"] == "video" and seconds is None and frames is not None:
        seconds = [index / SEEN_PER_SECOND for index in range(frames.shape[0])]
    return SeenItem(str(item["type"]), frames, tuple(seconds or ()))


def _pairs(video: SeenItem) -> list[tuple[torch.Tensor, float]]:
    """Return the pairs of a video's frames [2, H, W, C] and the time between them; a last one alone is there twice."""
    assert video.pixels is not None
    last = video.pixels.shape[0] - 1
    pairs = []
    for first in range(0, last + 1, 2):
        second = min(first + 1, last)
        seconds = (video.seconds[first] + video.seconds[second]) / 2.0
        pairs.append((video.pixels[[first, second]], seconds))
    return pairs


def _image(pixels: torch.Tensor | None, *, is_pair: bool = False) -> list[Weighted]:
    """Return the tokens of an image, or of a pair of frames, which the encoder replaces by what it sees."""
    token: dict[str, Any] = {"type": "image", "data": pixels, "original_type": "image"}
    if is_pair:
        token[PAIR] = True
    return [(VISION_START, 1.0, 0), (token, 1.0, 0), (VISION_END, 1.0, 0)]


class MiniMaxH3TextEncoder(QwenEncoder):
    """Qwen3-VL whose last layer is read without the final norm, which the network does without."""

    masks_padding = ends_with_norm = False

    def encode_weighted(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return the conditioning [1, T, D] of all tokens, with the modality of each as the option `TAGS`, int64 [T].

        Only the first chunk is read, and no weights.
        """
        read = self.read([token[0] for token in chunks[0]], layer_idx)
        return Encoded(read.cond, None, {TAGS: modalities(read.cond.shape[1], read.images)})


def modalities(num_tokens: int, images: Sequence[SeenImage]) -> torch.Tensor:
    """Return the modality [T] of each token: a video's for images and the tokens around them, else a text's."""
    tags = torch.full((num_tokens,), int(Source.TEXT), dtype=torch.int64)
    for image in images:
        tags[max(0, image.first - 1) : image.first + image.num_tokens + 1] = int(Source.VIDEO)
    return tags


def fits(shapes: Shapes) -> bool:
    """Return True for Qwen3-VL of as many layers as the family reads."""
    return VISION_PREFIX + VISION_MARK in shapes and LAST_LAYER in shapes and EMBEDDING in shapes


def _encoder() -> TextEncoder:
    described = qwen3_vl(
        QwenEncoding(SLOT, "{}", "{}", HIDDEN_SIZE),
        other_widths=(),
        encoder_type=MiniMaxH3TextEncoder,
        tokenizer_type=MiniMaxH3Tokenizer,
        sizes={
            "full": qwen3_vl_config(
                width=HIDDEN_SIZE, heads=64, key_heads=8, inner_width=25600, num_layers=NUM_LAYERS,
                vision=Qwen3VlVisionConfig(width=1152, inner_width=4304, num_blocks=27, out_width=HIDDEN_SIZE),
            ),
            "small": qwen3_vl_config(
                width=64, heads=1, key_heads=1, inner_width=128, num_layers=NUM_LAYERS,
                vision=Qwen3VlVisionConfig(width=64, inner_width=128, num_blocks=27, out_width=64, table_side=8),
            ),
        },
    )  # fmt: skip
    network = replace(described.network, defaults={FINAL_NORM: torch.ones})
    return replace(described, network=network, fits=fits)


QWEN = _encoder()
