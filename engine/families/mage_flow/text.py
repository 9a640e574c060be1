"""The text encoder of Mage-Flow: the last layer of Qwen3-VL 4B. It reads images too."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from darkroom.engine.families.text.qwen3_vl import SIZES_4B, qwen3_vl
from darkroom.engine.families.text.qwen25_vl import ANSWER, DESCRIBE, EDIT_TEMPLATE, SYSTEM
from darkroom.engine.text.chunk_tokens import Chunks, TokenizerOptions
from darkroom.engine.text.qwen_encoding import QwenEncoder, QwenEncoding
from darkroom.engine.text.qwen_tokens import IMAGE_PLACEHOLDER, QwenTokenizer

SLOT = "qwen3vl_4b"
HIDDEN_SIZE = 2560
OTHER_SIZES = (2048, 4096, 5120)  # of Qwen3-VL models that other networks read


def image_template(num_images: int) -> str:
    """Return the template of an instruction about this number of images, `{}` for the instruction."""
    shown = "".join(f"Image {number}: {IMAGE_PLACEHOLDER}" for number in range(1, num_images + 1))
    return EDIT_TEMPLATE.replace("{}", shown + "{}", 1)


class NormedQwenEncoder(QwenEncoder):
    """Qwen3-VL whose layers are all read behind the final norm."""

    def _states(
        self,
        embeds: torch.Tensor,
        mask: torch.Tensor | None,
        layer: int | None,
        positions: torch.Tensor | None,
        added: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        states = super()._states(embeds, mask, layer, positions, added)
        normed: torch.Tensor = states if layer is None else self.transformer.model.norm(states)
        return normed


class NumberedImagesTokenizer(QwenTokenizer):
    """Prompts -> tokens, with the images before the instruction, each behind its number."""

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

        With `prevent_empty_text` an empty prompt is a space.
        """
        image = kwargs.get("image")
        if isinstance(image, torch.Tensor) and not images:
            images = torch.split(image, 1)
        template = llama_template or (image_template(len(images)) if images else None)
        return super().tokenize_with_weights(
            text or (" " if kwargs.get("prevent_empty_text") else ""), return_word_ids, tokenizer_options,
            llama_template=template, images=images, skip_template=kwargs.get("skip_template"),
            thinking=kwargs.get("thinking"),
        )  # fmt: skip


QWEN = qwen3_vl(
    QwenEncoding(SLOT, SYSTEM.format(DESCRIBE) + ANSWER, image_template(1), HIDDEN_SIZE, writes_text=True),
    other_widths=OTHER_SIZES,
    encoder_type=NormedQwenEncoder,
    tokenizer_type=NumberedImagesTokenizer,
    sizes=SIZES_4B,
)
