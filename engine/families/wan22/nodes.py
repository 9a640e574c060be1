"""The latent of videos of Wan 2.2 5B, which may begin with images."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.families.wan22.vae_files import WAN22_CHANNELS, Wan22LatentFormat
from darkroom.engine.images.pixels import resize_image
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX
from darkroom.engine.nodes.library.conditioning.image_conditioning import Count
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import IMAGE, LATENT, VAE
from darkroom.engine.nodes.widgets import Int

CELL_PX, FRAMES_RATIO = 16, 4

Side = Annotated[int, Int(min=32, max=MAX_SIDE_PX, step=32)]


@node("Wan22ImageToVideoLatent", display_name=None, category="model/conditioning/wan",
      python_module="comfy_extras.nodes_wan")  # fmt: skip
def wan22_image_to_video_latent(
    context: NodeContext,
    *,
    vae: VAE,
    width: Side = 1280,
    height: Side = 704,
    length: Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=4)] = 49,
    batch_size: Count = 1,
    start_image: Annotated[IMAGE | None, Optional()] = None,
) -> LATENT:
    """Return the latent of videos of `length` frames, the first of which are given; one empty latent without any."""
    frames = (length - 1) // FRAMES_RATIO + 1
    latent = torch.zeros(1, WAN22_CHANNELS, frames, height // CELL_PX, width // CELL_PX)
    if start_image is None:
        return {"samples": latent}
    given: torch.Tensor = vae.encode(resize_image(start_image[:length], width, height, "bilinear", "center")[..., :3])
    mask = torch.ones(1, 1, *latent.shape[2:])
    mask[:, :, : given.shape[2]] = 0.0
    drawn = Wan22LatentFormat().process_out(latent)
    drawn[:, :, : given.shape[2]] = given
    copies = (batch_size, 1, 1, 1, 1)
    return {"samples": drawn.repeat(copies), "noise_mask": mask.repeat(copies)}


NODES = (wan22_image_to_video_latent,)
