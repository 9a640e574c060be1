"""The inputs of Flux.2 beside the latent: text of at least 512 tokens, guidance, reference images."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from darkroom.engine.diffusion.conditions import BatchedInput, RegularInput
from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser
from darkroom.engine.families.reference_inputs import reference_inputs

DEFAULT_GUIDANCE = 3.5
LEAST_TOKENS = 512


class Flux2Denoiser(TextTokensDenoiser):
    """Flux.2, whose text [B, T, D] has zeros before it where it is short."""

    comfy_name = "Flux2"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the network's inputs. Raises ValueError for reference images of another family's VAE."""
        inputs = super().extra_conds(**kwargs)
        text = inputs.get("c_crossattn")
        if text is not None:
            missing = max(0, LEAST_TOKENS - text.cond.shape[1])
            inputs["c_crossattn"] = RegularInput(functional.pad(text.cond, (0, 0, missing, 0)))
        guidance = kwargs.get("guidance", DEFAULT_GUIDANCE)
        if guidance is not None:
            inputs["guidance"] = RegularInput(torch.tensor([float(guidance)]))
        return {**inputs, **reference_inputs(self, kwargs)}
