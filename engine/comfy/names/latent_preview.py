"""`latent_preview`: progress and previews of a sampler's steps.

A pack's replacement of `get_previewer` provides the previewer that is called after every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from PIL import Image

from darkroom.engine.comfy.host import HOST
from darkroom.engine.comfy.names.comfy.cli_args import LatentPreviewMethod
from darkroom.engine.comfy.replaceable_names import bound
from darkroom.engine.nodes.library.sampling import sampling

__all__ = ["LatentPreviewMethod"]

MAX_PREVIEW_RESOLUTION = 512

Preview = tuple[str, Image.Image, int]  # format, image, largest side in pixels

prepare_callback = bound(sampling.prepare_callback)


class LatentPreviewer:
    """Converter from latents to images; subclasses implement the conversion."""

    def decode_latent_to_preview(self, x0: torch.Tensor) -> Image.Image:
        """Return the first of the scaled latents [B, C, h, w] as an image."""
        raise TypeError(f"{type(self).__name__} has no decode_latent_to_preview")

    def decode_latent_to_preview_image(self, preview_format: str, x0: torch.Tensor) -> Preview:
        return ("JPEG", self.decode_latent_to_preview(x0), MAX_PREVIEW_RESOLUTION)


class Latent2RGBPreviewer(LatentPreviewer):
    """Previewer that multiplies each latent cell by a colour table [C, 3]."""

    def __init__(
        self,
        latent_rgb_factors: Any,
        latent_rgb_factors_bias: Any = None,
        latent_rgb_factors_reshape: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self.latent_rgb_factors_reshape = latent_rgb_factors_reshape
        self.latent_rgb_factors = torch.tensor(latent_rgb_factors, device="cpu").transpose(0, 1)  # [3, C]
        self.latent_rgb_factors_bias = None
        if latent_rgb_factors_bias is not None:
            self.latent_rgb_factors_bias = torch.tensor(latent_rgb_factors_bias, device="cpu")

    def decode_latent_to_preview(self, x0: torch.Tensor) -> Image.Image:
        if self.latent_rgb_factors_reshape is not None:
            x0 = self.latent_rgb_factors_reshape(x0)
        factors = self.latent_rgb_factors.to(x0)
        bias = None if self.latent_rgb_factors_bias is None else self.latent_rgb_factors_bias.to(x0)
        return preview_to_image(torch.nn.functional.linear(x0[0].movedim(0, -1), factors, bias))


def preview_to_image(latent_image: torch.Tensor) -> Image.Image:
    """Return [H, W, 3] of -1..1 as an image."""
    levels = ((latent_image + 1.0) / 2.0).clamp(0, 1).mul(255).to(device="cpu", dtype=torch.uint8)
    return Image.fromarray(levels.numpy())


class TAESDPreviewerImpl(LatentPreviewer):
    """Previewer that decodes with a small network (`engine/models/kinds/tiny_decoder.py`)."""

    def __init__(self, taesd: Any) -> None:
        self.taesd = taesd

    def decode_latent_to_preview(self, x0: torch.Tensor) -> Image.Image:
        return preview_to_image(self.taesd.decode(x0[:1])[0].movedim(0, 2))


def get_previewer(device: Any, latent_format: Any) -> LatentPreviewer | None:
    """Return the previewer, or None when previews are off (`--preview-method`)."""
    engine = HOST.get().engine
    if engine.previews.method == "none":
        return None
    decoder = engine.tiny_decoders.find(latent_format, device) if engine.previews.method == "taesd" else None
    if decoder is not None:
        return TAESDPreviewerImpl(decoder)
    factors = latent_format.latent_rgb_factors
    if factors is None:
        return None
    return Latent2RGBPreviewer(
        factors, latent_format.latent_rgb_factors_bias, getattr(latent_format, "latent_rgb_factors_reshape", None)
    )
