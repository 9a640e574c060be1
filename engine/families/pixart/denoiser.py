"""The inputs of PixArt beside latent and text: the size of the image, for networks that were trained with it."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, RegularInput
from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser


class PixArtDenoiser(TextTokensDenoiser):
    """PixArt, alpha or sigma. Networks that read no sizes ignore them."""

    comfy_name = "PixArt"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the network's inputs. Raises ValueError for a width of 0, which has no aspect ratio."""
        inputs = super().extra_conds(**kwargs)
        width, height = kwargs.get("width"), kwargs.get("height")
        if width is None or height is None:
            return inputs
        if width == 0:
            raise ValueError(f"conditioning: width; got {width}, expected at least 1 pixel")
        aspect = kwargs.get("aspect_ratio", height / width)
        inputs["c_size"] = RegularInput(torch.tensor([[float(height), float(width)]]))
        inputs["c_ar"] = RegularInput(torch.tensor([[float(aspect)]]))
        return inputs
