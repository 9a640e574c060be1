"""The text encoder of Qwen-Image 2.1: the last layer of Qwen3-VL 8B. It reads images too."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from darkroom.engine.families.text.qwen3_vl import qwen3_vl, qwen3_vl_config
from darkroom.engine.families.text.qwen25_vl import ANSWER, SYSTEM
from darkroom.engine.layers.qwen3_vl_vision import Qwen3VlVisionConfig
from darkroom.engine.text.chunk_encoding import NO_OPTIONS, Encoded, TokenWeights
from darkroom.engine.text.chunk_tokens import Chunks, TokenizerOptions
from darkroom.engine.text.qwen_encoding import QwenEncoder, QwenEncoding
from darkroom.engine.text.qwen_tokens import IMAGE_PLACEHOLDER, START_TOKEN, QwenTokenizer

SLOT = "qwen3vl_8b"
WIDTH = 4096
OTHER_WIDTHS = (2048, 2560, 5120)  # of Qwen3-VL models that other networks read
INSTRUCTION = "Comprehend and analyze the provided prompt."
TEMPLATE = SYSTEM.format(INSTRUCTION) + ANSWER
KEPT = "is_kept"  # of an image's token: what the encoder sees of it stays in the conditioning


def image_template(num_images: int) -> str:
    """Return the template of prompts with so many images, `{}` for the prompt."""
    shown = " ".join(f"<image{number}>{IMAGE_PLACEHOLDER}" for number in range(1, num_images + 1))
    return SYSTEM.format(INSTRUCTION) + shown + ANSWER


class SplicedQwenEncoder(QwenEncoder):
    """Qwen3-VL whose last layer is read without the final norm, and whose images leave their places alone.

    The network has the images themselves there, unless their tokens are marked as `KEPT`.
    """

    ends_with_norm = False

    def encode_weighted(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return the conditioning [1, T, D] from the second turn on, without the rows of its images.

        The option `image_slots` has the place of each image in it. Only the first chunk is read, and no weights.
        """
        tokens = [token[0] for token in chunks[0]]
        read = self.read(tokens, layer_idx)
        starts = [place for place, token in enumerate(tokens) if isinstance(token, int) and token == START_TOKEN]
        first = read.firsts[starts[1]] if len(starts) > 1 else 0
        kept = [row >= first for row in range(read.cond.shape[1])]
        slots: list[int] = []
        images = [token for token in tokens if isinstance(token, dict)]
        for token, image in zip(images, read.images, strict=True):
            if not token.get(KEPT):
                for row in range(image.first, image.first + image.num_tokens):
                    kept[row] = False
                slots.append(sum(kept[: image.first]))
        # By numbers: a mask on a device has to be searched there, and the host waits for what was found.
        rows = [row for row, is_kept in enumerate(kept) if is_kept]
        cond = read.cond[:, torch.tensor(rows, dtype=torch.int64, device=read.cond.device)]
        return Encoded(cond, None, {"image_slots": slots} if slots else NO_OPTIONS)


class SplicedQwenTokenizer(QwenTokenizer):
    """Prompts -> tokens, with the images before the prompt, each behind its number."""

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
        """Return the chunk by slot, as `QwenTokenizer.tokenize_with_weights`.

        With `keep_vision` what the encoder sees of the images stays in the conditioning.
        """
        chunks = super().tokenize_with_weights(
            text, return_word_ids, tokenizer_options, llama_template=llama_template or image_template(len(images)),
            images=images, prevent_empty_text=kwargs.get("prevent_empty_text"),
        )  # fmt: skip
        if kwargs.get("keep_vision"):
            for token, *_ in chunks[self.slot][0]:
                if isinstance(token, dict):
                    token[KEPT] = True
        return chunks


QWEN = qwen3_vl(
    QwenEncoding(SLOT, TEMPLATE, image_template(1), WIDTH),
    other_widths=OTHER_WIDTHS,
    encoder_type=SplicedQwenEncoder,
    tokenizer_type=SplicedQwenTokenizer,
    sizes={
        "full": qwen3_vl_config(
            width=WIDTH, heads=32, key_heads=8, inner_width=12288,
            vision=Qwen3VlVisionConfig(width=1152, inner_width=4304, num_blocks=27, out_width=WIDTH),
        ),
        "small": qwen3_vl_config(
            width=128, heads=1, key_heads=1, inner_width=64,
            vision=Qwen3VlVisionConfig(width=64, inner_width=128, num_blocks=27, out_width=128, table_side=8),
        ),
    },
)  # fmt: skip
