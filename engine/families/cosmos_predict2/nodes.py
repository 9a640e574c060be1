"""The latent of videos of Cosmos-Predict2, which may begin and end with images."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.families.wan.vae_files import LATENT_CHANNELS, WanLatentFormat
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX
from darkroom.engine.nodes.library.conditioning.image_conditioning import Count
from darkroom.engine.nodes.library.latent.given_frames import repeated, with_given_frames
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import IMAGE, LATENT, VAE
from darkroom.engine.nodes.widgets import Int

CELL_PX, FRAMES_RATIO = 8, 4

Side = Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=16)]


@node("CosmosPredict2ImageToVideoLatent", display_name=None, category="model/conditioning/cosmos",
      python_module="comfy_extras.nodes_cosmos")  # fmt: skip
def cosmos_predict2_image_to_video_latent(
    context: NodeContext,
    *,
    vae: VAE,
    width: Side = 848,
    height: Side = 480,
    length: Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=4)] = 93,
    batch_size: Count = 1,
    start_image: Annotated[IMAGE | None, Optional()] = None,
    end_image: Annotated[IMAGE | None, Optional()] = None,
) -> LATENT:
    """Return the latent of videos of `length` frames, the first and last of which are given; one without any."""
    frames = (length - 1) // FRAMES_RATIO + 1
    latent = torch.zeros(1, LATENT_CHANNELS, frames, height // CELL_PX, width // CELL_PX)
    if start_image is None and end_image is None:
        return {"samples": latent}
    latent, mask = with_given_frames(vae, latent, width, height, length, start_image, end_image)
    samples = WanLatentFormat().process_out(latent) * mask + latent * (1.0 - mask)
    return repeated(samples, mask, batch_size)


NODES = (cosmos_predict2_image_to_video_latent,)
