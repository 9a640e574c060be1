"""Node classes made for Stable Zero123: other views of the object in an image."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.image_conditioning import (
    VIEWS_MODULE,
    Count,
    Negative,
    Positive,
    Side,
    Start,
    empty_latent,
    image_pair,
    image_seen,
)
from darkroom.engine.nodes.sockets import CLIP_VISION, IMAGE, VAE
from darkroom.engine.nodes.widgets import Float

Angle = Annotated[float, Float(min=-180.0, max=180.0, step=0.1, round=False)]


def camera(elevation: float, azimuth: float) -> torch.Tensor:
    """Return a camera [1, 1, 4] relative to the image's, from angles in degrees: Zero-1-to-3's, elevation last."""
    up, around = torch.tensor([float(elevation)]), torch.tensor([float(azimuth)])
    around = torch.deg2rad(around)
    parts = (torch.deg2rad((90 - up) - 90), around.sin(), around.cos(), torch.deg2rad(90 - torch.zeros_like(up)))
    return torch.stack(parts, dim=-1).unsqueeze(1)


@node(
    "StableZero123_Conditioning",
    display_name=None,
    category="model/conditioning/stable zero123",
    python_module=VIEWS_MODULE,
)
def stable_zero123_conditioning(
    context: NodeContext,
    *,
    clip_vision: CLIP_VISION,
    init_image: IMAGE,
    vae: VAE,
    width: Side = 256,
    height: Side = 256,
    batch_size: Count = 1,
    elevation: Angle = 0.0,
    azimuth: Angle = 0.0,
) -> tuple[Positive, Negative, Start]:
    """Make conditioning of an object's image and the camera of another view."""
    embedding, pixels = image_seen(clip_vision, init_image, width, height)
    seen_from = camera(elevation, azimuth).to(embedding).expand(1, embedding.shape[1], -1)
    tokens = torch.cat([embedding, seen_from], dim=-1)
    positive, negative = image_pair(tokens, torch.zeros_like(embedding), vae.encode(pixels))
    return positive, negative, {"samples": empty_latent(batch_size, width, height)}


@node(
    "StableZero123_Conditioning_Batched",
    display_name=None,
    category="model/conditioning/stable zero123",
    python_module=VIEWS_MODULE,
    advanced=("elevation_batch_increment", "azimuth_batch_increment"),
)
def stable_zero123_conditioning_batched(
    context: NodeContext,
    *,
    clip_vision: CLIP_VISION,
    init_image: IMAGE,
    vae: VAE,
    width: Side = 256,
    height: Side = 256,
    batch_size: Count = 1,
    elevation: Angle = 0.0,
    azimuth: Angle = 0.0,
    elevation_batch_increment: Angle = 0.0,
    azimuth_batch_increment: Angle = 0.0,
) -> tuple[Positive, Negative, Start]:
    """Make conditioning of several views, whose cameras differ by equal steps and whose noise is the same."""
    embedding, pixels = image_seen(clip_vision, init_image, width, height)
    cameras = torch.cat(
        [
            camera(elevation + index * elevation_batch_increment, azimuth + index * azimuth_batch_increment)
            for index in range(batch_size)
        ]
    )
    tokens = torch.cat([embedding.expand(batch_size, -1, -1), cameras.to(embedding)], dim=-1)
    positive, negative = image_pair(tokens, torch.zeros_like(embedding), vae.encode(pixels))
    return positive, negative, {"samples": empty_latent(batch_size, width, height), "batch_index": [0] * batch_size}


NODES = (stable_zero123_conditioning, stable_zero123_conditioning_batched)
