"""Latents of videos of Cosmos 1: empty ones, and those that begin or end with images."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.families.cosmos1.vae_files import LATENT_CHANNELS
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX
from darkroom.engine.nodes.library.conditioning.image_conditioning import Count
from darkroom.engine.nodes.library.latent.given_frames import repeated, with_given_frames
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import IMAGE, LATENT, VAE
from darkroom.engine.nodes.widgets import Int

CELL_PX, FRAMES_RATIO = 8, 8
MODULE = "comfy_extras.nodes_cosmos"

Side = Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=16)]
Length = Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=8)]
Given = Annotated[IMAGE | None, Optional()]


def empty_video(batch_size: int, length: int, width: int, height: int) -> torch.Tensor:
    """Return zeros [batch_size, 16, f, h, w] for videos of `length` frames of a size in pixels."""
    frames = (length - 1) // FRAMES_RATIO + 1
    return torch.zeros(batch_size, LATENT_CHANNELS, frames, height // CELL_PX, width // CELL_PX)


@node("EmptyCosmosLatentVideo", display_name=None, category="model/latent/cosmos", python_module=MODULE)
def empty_cosmos_latent_video(
    context: NodeContext,
    *,
    width: Side = 1280,
    height: Side = 704,
    length: Length = 121,
    batch_size: Count = 1,
) -> LATENT:
    """Return an empty latent of videos of `length` frames."""
    return {"samples": empty_video(batch_size, length, width, height)}


@node("CosmosImageToVideoLatent", display_name=None, category="model/conditioning/cosmos", python_module=MODULE)
def cosmos_image_to_video_latent(
    context: NodeContext,
    *,
    vae: VAE,
    width: Side = 1280,
    height: Side = 704,
    length: Length = 121,
    batch_size: Count = 1,
    start_image: Given = None,
    end_image: Given = None,
) -> LATENT:
    """Return the latent of videos of `length` frames, the first and last of which are given; one without any."""
    latent = empty_video(1, length, width, height)
    if start_image is None and end_image is None:
        return {"samples": latent}
    return repeated(*with_given_frames(vae, latent, width, height, length, start_image, end_image), batch_size)


NODES = (empty_cosmos_latent_video, cosmos_image_to_video_latent)
