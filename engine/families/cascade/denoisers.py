"""The inputs of Stable Cascade's stages, and the latents that they draw.

`B` batch, `P` images, `h w` latent cells.
"""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, CrossAttentionInput, RegularInput
from darkroom.engine.diffusion.denoiser import POOLED, Denoiser
from darkroom.engine.diffusion.latent_format import LatentFormat

PRIOR_CHANNELS, PRIOR_RATIO = 16, (4, 42)  # cells of stage C for one of stage B


class PriorLatentFormat(LatentFormat):
    """Latents of stage C. The colours are public knowledge of the community."""

    latent_channels = PRIOR_CHANNELS
    spacial_downscale_ratio = 42
    latent_rgb_factors = (
        (-0.0326, -0.0204, -0.0127), (-0.1592, -0.0427, 0.0216), (0.0873, 0.0638, -0.0020),
        (-0.0602, 0.0442, 0.1304), (0.0800, -0.0313, -0.1796), (-0.0810, -0.0638, -0.1581),
        (0.1791, 0.1180, 0.0967), (0.0740, 0.1416, 0.0432), (-0.1745, -0.1888, -0.1373),
        (0.2412, 0.1577, 0.0928), (0.1908, 0.0998, 0.0682), (0.0209, 0.0365, -0.0092),
        (0.0448, -0.0650, -0.1728), (-0.1658, -0.1045, -0.1308), (0.0542, 0.1545, 0.1325),
        (-0.0352, -0.1672, -0.2541),
    )  # fmt: skip


class DecoderLatentFormat(LatentFormat):
    """Latents of stage B, which stage A decodes. The colours are public knowledge of the community."""

    spacial_downscale_ratio = 4
    scale_factor = 1.0 / 0.43
    latent_rgb_factors = (
        (0.1121, 0.2006, 0.1023),
        (-0.2093, -0.0222, -0.0195),
        (-0.3087, -0.1535, 0.0366),
        (0.0290, -0.1574, -0.4078),
    )


def _pooled(options: dict[str, Any]) -> torch.Tensor:
    """Return the text's pooled output [1, D]. Raises ValueError without one."""
    pooled: torch.Tensor | None = options.get(POOLED)
    if pooled is None:
        raise ValueError("conditioning: no pooled output; got None, expected that of Stable Cascade's text encoder")
    return pooled


class PooledTextDenoiser(Denoiser):
    """A network that reads the prompt's pooled output."""

    def text_widths(self) -> dict[str, int]:
        config: Any = self.diffusion_model.config
        return {**super().text_widths(), POOLED: config.pooled_dim}


class StageCDenoiser(PooledTextDenoiser):
    """Stage C: it reads the prompt's tokens and pooled output, and embeddings of images."""

    comfy_name = "StableCascade_C"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        self.check_text(kwargs)
        images = [
            item["clip_vision_output"].image_embeds.unsqueeze(0) * item["strength"]  # [1, P, D]
            for item in kwargs.get("unclip_conditioning") or ()
        ]
        config: Any = self.diffusion_model.config
        seen = torch.cat(images, dim=1) if images else torch.zeros(1, 1, config.image_dim)
        inputs: dict[str, BatchedInput] = {
            "clip_text_pooled": RegularInput(_pooled(kwargs)),
            "clip_img": RegularInput(seen),
            "sca": RegularInput(torch.zeros(1)),
            "crp": RegularInput(torch.zeros(1)),
        }
        if kwargs.get("cross_attn") is not None:
            inputs["clip_text"] = CrossAttentionInput(kwargs["cross_attn"])
        return inputs


class StageBDenoiser(PooledTextDenoiser):
    """Stage B: it reads the prompt's pooled output and the latent of stage C, zeros without one."""

    comfy_name = "StableCascade_B"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        self.check_text(kwargs)
        noise: torch.Tensor = kwargs["noise"]
        prior = kwargs.get("stable_cascade_prior")
        if prior is None:
            times, parts = PRIOR_RATIO
            prior = torch.zeros(1, PRIOR_CHANNELS, *(size * times // parts for size in noise.shape[2:]))
        return {
            "clip": RegularInput(_pooled(kwargs)),
            "effnet": RegularInput(prior.to(noise)),
            "sca": RegularInput(torch.zeros(1)),
        }
