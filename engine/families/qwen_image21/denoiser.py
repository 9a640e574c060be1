"""The inputs of Qwen-Image 2.1 beside the latent: the text, reference images, and their places in the text."""

from __future__ import annotations

from typing import Any

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput
from darkroom.engine.families.qwen_image.image_denoiser import ImageVideoDenoiser


class QwenImage21Denoiser(ImageVideoDenoiser):
    """Qwen-Image 2.1, which custom nodes find by its name in ComfyUI.

    It sees references in the places of the text that `image_slots` gives, and in no other way.
    """

    comfy_name = "QwenImage21"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        slots = kwargs.get("image_slots")
        if slots is not None:
            inputs["image_slots"] = ConstantInput([int(slot) for slot in slots])
        return inputs
