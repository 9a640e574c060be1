"""The text encoder of Mage-Flow: the last layer of Qwen3-VL 4B. It reads images too."""

from __future__ import annotations

from darkroom.engine.families.text.qwen3_vl import SIZES_4B, qwen3_vl
from darkroom.engine.families.text.qwen25_vl import ANSWER, DESCRIBE, EDIT_TEMPLATE, SYSTEM
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

    norms_layers = True


class NumberedImagesTokenizer(QwenTokenizer):
    """Prompts -> tokens, with the images before the instruction, each behind its number."""

    def template_for(self, text: str, num_images: int) -> str:
        """Return the template, as `QwenTokenizer.template_for`."""
        return image_template(num_images) if num_images else super().template_for(text, num_images)


QWEN = qwen3_vl(
    QwenEncoding(SLOT, SYSTEM.format(DESCRIBE) + ANSWER, image_template(1), HIDDEN_SIZE, writes_text=True),
    other_widths=OTHER_SIZES,
    encoder_type=NormedQwenEncoder,
    tokenizer_type=NumberedImagesTokenizer,
    sizes=SIZES_4B,
)
