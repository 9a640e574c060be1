"""The inputs of Qwen-Image beside the latent: the text, and reference pictures."""

from __future__ import annotations

from typing import Any

from engine.diffusion.conditions import BatchedInput, ConstantInput, ListInput, RegularInput
from engine.diffusion.denoiser import Denoiser


class QwenImageDenoiser(Denoiser):
    """A network whose text [B, T, D] takes part in self-attention: repeating tokens would change its result."""

    comfy_name = "QwenImage"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        tokens = inputs.get("c_crossattn")
        if tokens is not None:
            inputs["c_crossattn"] = RegularInput(tokens.cond)
        references = kwargs.get("reference_latents")
        if references is not None:
            inputs["ref_latents"] = ListInput([self.process_latent_in(item) for item in references])
            method = kwargs.get("reference_latents_method")
            if method is not None:
                inputs["ref_latents_method"] = ConstantInput(method)
        return inputs
