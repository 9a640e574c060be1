"""The inputs of Chroma beside latent and text: guidance, which is 0 unless a node sets it."""

from __future__ import annotations

from typing import Any

import torch

from engine.diffusion.conditions import BatchedInput, RegularInput
from engine.families.parts.joint_text_denoiser import TextTokensDenoiser


class ChromaDenoiser(TextTokensDenoiser):
    """Chroma, which reads no pooled output."""

    comfy_name = "Chroma"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        guidance = kwargs.get("guidance")
        number = torch.tensor([0.0 if guidance is None else float(guidance)])
        return {**super().extra_conds(**kwargs), "guidance": RegularInput(number)}
