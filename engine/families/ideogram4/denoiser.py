"""The inputs of Ideogram 4 beside the latent: the text, and the mask of its padding."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, RegularInput
from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser


class Ideogram4Denoiser(TextTokensDenoiser):
    """Ideogram 4, which draws without a text where it gets none."""

    comfy_name = "Ideogram4"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        mask: torch.Tensor | None = kwargs.get("attention_mask")
        if mask is not None and not bool(mask.all()):
            inputs["attention_mask"] = RegularInput(mask)
        return inputs
