"""The denoisers of Chroma and of networks of its kind, which also read guidance: 0 unless a node sets it.

They read no pooled output.
"""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, RegularInput
from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser


class DistilledGuidanceDenoiser(TextTokensDenoiser):
    """A network whose guidance is one of the inputs of its modulations."""

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        guidance = kwargs.get("guidance")
        number = torch.tensor([0.0 if guidance is None else float(guidance)])
        return {**super().extra_conds(**kwargs), "guidance": RegularInput(number)}


class ChromaDenoiser(DistilledGuidanceDenoiser):
    """Chroma, which draws in latents."""

    comfy_name = "Chroma"
