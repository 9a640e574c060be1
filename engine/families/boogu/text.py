"""The text encoder of Boogu-Image: Qwen3-VL 8B, whose normed last layer is read. It reads images too."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from darkroom.engine.families.text.qwen3_vl import QWEN3_VL_8B, QWEN3_VL_8B_WIDTH, qwen3_vl
from darkroom.engine.families.text.qwen25_vl import EDIT, QUESTION, SYSTEM
from darkroom.engine.text.chunk_encoding import Encoded, TokenWeights
from darkroom.engine.text.qwen_encoding import QwenEncoder, QwenEncoding
from darkroom.engine.text.qwen_tokens import IMAGE_PLACEHOLDER, QwenTokenizer

SLOT = "qwen3vl_8b"
OTHER_SIZES = (2048, 2560, 5120)  # of Qwen3-VL models that other networks read
TASK = (
    "You are a helpful assistant that generates high-quality images based on user instructions. The instructions are "
    "as follows."
)
END = QUESTION + "\n"
TEMPLATE = SYSTEM.format(TASK) + END
IMAGE_TEMPLATE = SYSTEM.format(EDIT) + IMAGE_PLACEHOLDER + END
EMPTY_TEMPLATE = SYSTEM.format(EDIT) + END  # of prompts without words and images


class BooguEncoder(QwenEncoder):
    """Qwen3-VL whose conditioning is of all tokens, those of the template too, behind the final norm."""

    norms_layers = True

    def encode_weighted(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return the conditioning [1, T, D]. Only the first chunk is read, and no weights."""
        return Encoded(self.encode([token[0] for token in chunks[0]], layer_idx), None)


class BooguTokenizer(QwenTokenizer):
    """Prompts -> tokens, in a template of their own where they are empty."""

    def template_for(self, text: str, num_images: int) -> str:
        """Return the template, as `QwenTokenizer.template_for`."""
        return super().template_for(text, num_images) if num_images or text.strip() else EMPTY_TEMPLATE


QWEN = qwen3_vl(
    QwenEncoding(SLOT, TEMPLATE, IMAGE_TEMPLATE, QWEN3_VL_8B_WIDTH),
    other_widths=OTHER_SIZES,
    encoder_type=BooguEncoder,
    tokenizer_type=partial(BooguTokenizer, repeats_images=True),
    sizes=QWEN3_VL_8B,
)
