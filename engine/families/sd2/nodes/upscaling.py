"""Conditioning of networks that enlarge an image by drawing it anew."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.images.pixels import resize
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_options
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import CONDITIONING, IMAGE, LATENT
from darkroom.engine.nodes.widgets import Float

LATENT_CHANNELS = 4
CELL_PX = 4


@node(
    "SD_4XUpscale_Conditioning",
    display_name=None,
    category="model/conditioning/stable diffusion upscaler",
    python_module="comfy_extras.nodes_sdupscale",
    advanced=("noise_augmentation",),
)
def sd_4x_upscale_conditioning(
    context: NodeContext,
    *,
    images: IMAGE,
    positive: CONDITIONING,
    negative: CONDITIONING,
    scale_ratio: Annotated[float, Float(min=0.0, max=10.0, step=0.01)] = 4.0,
    noise_augmentation: Annotated[float, Float(min=0.0, max=1.0, step=0.001)] = 0.0,
) -> tuple[
    Annotated[CONDITIONING, Out("positive")],
    Annotated[CONDITIONING, Out("negative")],
    Annotated[LATENT, Out("latent")],
]:
    """Show images to the upscaler of Stable Diffusion 2, with some noise, and make an empty latent for the result."""
    height, width = (max(1, round(size * scale_ratio)) for size in images.shape[1:3])
    cells = (width // CELL_PX, height // CELL_PX)
    pixels = resize(images.movedim(-1, 1) * 2.0 - 1.0, *cells, "bilinear", "center")  # [B, C, h, w], -1..1
    shown = {"concat_image": pixels, "noise_augmentation": noise_augmentation}
    latent = torch.zeros([images.shape[0], LATENT_CHANNELS, cells[1], cells[0]])
    return with_options(positive, **shown), with_options(negative, **shown), {"samples": latent}


NODES = (sd_4x_upscale_conditioning,)
