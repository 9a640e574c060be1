"""The text encoders of Kandinsky 5: Qwen2.5-VL for the prompt in a template, CLIP ViT-L for the pooled output.

`T` tokens, `D` hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from darkroom.engine.families.base import TextEncoder
from darkroom.engine.families.text.clip_l import clip_l
from darkroom.engine.families.text.qwen25_vl import QUESTION, SLOT, SYSTEM, qwen_7b
from darkroom.engine.text.chunk_encoding import Encoded
from darkroom.engine.text.clip_l import CLIP_L_ENCODING
from darkroom.engine.text.qwen_encoding import QwenEncoder

CONTEXT_DIM, LABEL_DIM = 3584, 768
LAYER = -1  # whose output, before the final norm, is the conditioning unless a node asks for another one
# The instructions that the networks were trained with (Kandinsky Lab's code of Kandinsky 5).
DESCRIBE_VIDEO = (
    "You are a prompt engineer. Describe the video in detail.\n"
    "Describe how the camera moves or shakes, describe the zoom and view angle, whether it follows the objects.\n"
    "Describe the location of the video, main characters or objects and their action.\n"
    "Describe the dynamism of the video and presented actions.\n"
    "Name the visual style of the video: whether it is a professional footage, user generated content, some kind of "
    "animation, video game or screen content.\n"
    "Describe the visual effects, postprocessing and transitions if they are presented in the video.\n"
    "Pay attention to the order of key actions shown in the scene."
)
DESCRIBE_IMAGE = (
    "You are a promt engineer. Describe the image by detailing the color, shape, size, texture, quantity, text, "
    "spatial relationships of the objects and background:"
)


class PromptEncoder(QwenEncoder):
    """Qwen2.5-VL whose last layer gives the conditioning before the final norm."""

    def encode(self, chunk: Sequence[object], layer_idx: int | None) -> torch.Tensor:
        return super().encode(chunk, LAYER if layer_idx is None else layer_idx)


def tokens_and_pooled(encoded: Mapping[str, Encoded]) -> Encoded:
    """Return the tokens of Qwen2.5-VL, and the pooled output of CLIP."""
    return Encoded(encoded[SLOT].cond, encoded["l"].pooled)


def text_encoders(instruction: str) -> tuple[TextEncoder, TextEncoder]:
    """Return the encoders of a network that was trained with an instruction before its prompts."""
    return qwen_7b(SYSTEM.format(instruction) + QUESTION, PromptEncoder), clip_l(CLIP_L_ENCODING)
