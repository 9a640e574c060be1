"""The inputs of HunyuanImage 2.1 beside the latent: the prompt, its mask, the words to draw, and guidance."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, RegularInput
from darkroom.engine.families.hunyuan_image.text import GLYPHS
from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser

DEFAULT_GUIDANCE = 6.0


class GlyphDenoiser(TextTokensDenoiser):
    """A network that reads Qwen2.5-VL's states, and ByT5's where the prompt has words to draw."""

    def text_widths(self) -> dict[str, int]:
        config: Any = self.diffusion_model.config
        return {**super().text_widths(), GLYPHS: config.glyph_width}

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        mask: torch.Tensor | None = kwargs.get("attention_mask")
        if mask is not None and int(mask.sum()) != mask.numel():
            inputs["attention_mask"] = RegularInput(mask)
        glyphs: torch.Tensor | None = kwargs.get(GLYPHS)
        if glyphs is not None:
            inputs["txt_byt5"] = RegularInput(glyphs)
        guidance = kwargs.get("guidance", DEFAULT_GUIDANCE)
        if guidance is not None:
            inputs["guidance"] = RegularInput(torch.tensor([float(guidance)]))
        return inputs
