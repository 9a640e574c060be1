"""The inputs of Mochi beside the latent: the prompt, and how many of its tokens take part."""

from __future__ import annotations

from typing import Any

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput, RegularInput
from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser


class MochiDenoiser(TextTokensDenoiser):
    comfy_name = "GenmoMochi"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        mask = kwargs.get("attention_mask")
        if mask is not None:
            inputs["attention_mask"] = RegularInput(mask)
            inputs["num_tokens"] = ConstantInput(max(1, int(mask.sum().item())))
        return inputs
