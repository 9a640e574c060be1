"""Conditioning by an image in place of a prompt, for networks that draw videos, orbits and other views of it.

`B` images, `D` width of an image's embedding.
"""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.images.pixels import resize_image
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import CLIP_VISION, CONDITIONING, IMAGE, LATENT, Conditioning
from darkroom.engine.nodes.widgets import Int

VIEWS_MODULE = "comfy_extras.nodes_stable3d"
VIEWS_CATEGORY = "conditioning/3d_models"
LATENT_CHANNELS = 4
CELL_PX = 8

Side = Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=8)]
Count = Annotated[int, Int(min=1, max=4096)]
Positive = Annotated[CONDITIONING, Out("positive")]
Negative = Annotated[CONDITIONING, Out("negative")]
Start = Annotated[LATENT, Out("latent")]


def image_seen(
    clip_vision: CLIP_VISION, init_image: IMAGE, width: int, height: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the embedding [1, B, D] of images, and their colours [B, height, width, 3]."""
    embedding: torch.Tensor = clip_vision.encode_image(init_image).image_embeds.unsqueeze(0)
    pixels = resize_image(init_image, width, height, "bilinear", "center")[:, :, :, :3]
    return embedding, pixels


def image_pair(
    tokens: torch.Tensor, nothing: torch.Tensor, latent: torch.Tensor, **options: object
) -> tuple[Conditioning, Conditioning]:
    """Return the conditioning of an image, and that of none: zeros in place of tokens and latent."""
    positive = [[tokens, {**options, "concat_latent_image": latent}]]
    negative = [[nothing, {**options, "concat_latent_image": torch.zeros_like(latent)}]]
    return positive, negative


def empty_latent(count: int, width: int, height: int) -> torch.Tensor:
    """Return zeros [count, 4, h, w] for images of a size in pixels."""
    return torch.zeros([count, LATENT_CHANNELS, height // CELL_PX, width // CELL_PX])
