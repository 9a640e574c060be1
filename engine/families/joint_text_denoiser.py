"""Denoisers of transformers that read text beside the image, with or without its pooled output beside the time.

`B` batch, `T` tokens, `D` width.
"""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, RegularInput
from darkroom.engine.diffusion.denoiser import POOLED, Denoiser


class TextTokensDenoiser(Denoiser):
    """A network whose result repeated tokens of the text [B, T, D] would change, as they do in self-attention."""

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        tokens = inputs.get("c_crossattn")
        if tokens is not None:
            inputs["c_crossattn"] = RegularInput(tokens.cond)
        return inputs


class JointTextDenoiser(TextTokensDenoiser):
    """A network that reads the text's pooled output too."""

    def text_widths(self) -> dict[str, int]:
        config: Any = self.diffusion_model.config
        return {**super().text_widths(), POOLED: config.label_dim}

    def encode_adm(self, **kwargs: Any) -> torch.Tensor:
        """Return the text's pooled output [B, D]. Raises ValueError for a conditioning without one."""
        pooled: torch.Tensor | None = kwargs.get(POOLED)
        if pooled is None:
            raise ValueError(
                "conditioning: its text encoder gave no pooled output; got None, expected that of a model of this "
                "family"
            )
        return pooled
