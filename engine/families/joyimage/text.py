"""The text encoder of JoyAI-Image: Qwen3-VL 8B, read before its final norm. It reads images too."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch.nn import functional

from darkroom.engine.families.text.qwen3_vl import QWEN3_VL_8B, QWEN3_VL_8B_WIDTH, qwen3_vl
from darkroom.engine.families.text.qwen25_vl import ANSWER, DESCRIBE, SYSTEM
from darkroom.engine.layers.qwen3_vl_vision import PATCH_PX
from darkroom.engine.layers.qwen25_vl_vision import MERGED, seen_size
from darkroom.engine.text.chunk_encoding import Encoded, TokenWeights
from darkroom.engine.text.qwen_encoding import QwenEncoder, QwenEncoding
from darkroom.engine.text.qwen_tokens import IMAGE_PLACEHOLDER, QwenTokenizer

SLOT = "qwen3vl_8b"
OTHER_SIZES = (2048, 2560, 5120)  # of Qwen3-VL models that other networks read
TEMPLATE_TOKENS = 34  # at the beginning, which the network was trained without
SMALLEST_PX = 65536  # of an image's area
# With a backslash and an n as they are in the prompts of its training.
BEGINNING = SYSTEM.format(f" \\n{DESCRIBE}")
TEMPLATE = BEGINNING + ANSWER
IMAGE_TEMPLATE = BEGINNING + IMAGE_PLACEHOLDER + ANSWER


class JoyImageEncoder(QwenEncoder):
    """Qwen3-VL whose conditioning begins behind the first tokens of the template."""

    ends_with_norm = False

    def encode_weighted(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return the conditioning [1, T, D]. Only the first chunk is read, and no weights.

        Raises ValueError for a prompt without a template that is shorter than the template's beginning.
        """
        cond = self.encode([token[0] for token in chunks[0]], layer_idx)
        if cond.shape[1] <= TEMPLATE_TOKENS:
            raise ValueError(
                f"prompt: it has its own template, whose first {TEMPLATE_TOKENS} tokens are left out; got "
                f"{cond.shape[1]} tokens, expected more"
            )
        return Encoded(cond[:, TEMPLATE_TOKENS:], None)


def seen_image(image: torch.Tensor) -> torch.Tensor:
    """Return an image [1, H, W, 3] at the size at which the encoder reads it, resized by bicubic interpolation."""
    height, width = seen_size(image.shape[1], image.shape[2], PATCH_PX * MERGED, smallest_px=SMALLEST_PX)
    pixels = image[:1, ..., :3].movedim(-1, 1).float()
    return functional.interpolate(pixels, (height, width), mode="bicubic").movedim(1, -1)


class JoyImageTokenizer(QwenTokenizer):
    """Prompts -> tokens, with all images before the prompt; nothing is ever said of thinking."""

    tells_of_thinking = False

    def seen(self, image: torch.Tensor) -> torch.Tensor:
        """Return an image as `seen_image` does."""
        return seen_image(image)


QWEN = qwen3_vl(
    QwenEncoding(SLOT, TEMPLATE, IMAGE_TEMPLATE, QWEN3_VL_8B_WIDTH),
    other_widths=OTHER_SIZES,
    encoder_type=JoyImageEncoder,
    tokenizer_type=partial(JoyImageTokenizer, repeats_images=True),
    sizes=QWEN3_VL_8B,
)
