"""Hunyuan3D 2's guidance, which is 5 unless a node sets it."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, RegularInput
from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser

DEFAULT_GUIDANCE = 5.0


class ShapeDenoiser(TextTokensDenoiser):
    """A network of shapes that reads the tokens of images, and guidance where it is distilled."""

    comfy_name = "Hunyuan3Dv2"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        guidance = kwargs.get("guidance", DEFAULT_GUIDANCE)
        inputs = super().extra_conds(**kwargs)
        if guidance is not None:
            inputs["guidance"] = RegularInput(torch.tensor([float(guidance)]))
        return inputs
