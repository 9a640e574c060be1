"""The latent of videos of Cosmos-Predict2, which may begin and end with pictures."""

from __future__ import annotations

from typing import Annotated

import torch

from engine.families.parts.causal_video_vae import LATENT_CHANNELS, CausalVideoLatentFormat
from engine.images.pixels import resize_image
from engine.nodes.base import Int, NodeContext, Optional, node
from engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX
from engine.nodes.library.conditioning.picture_conditioning import Count
from engine.nodes.sockets import IMAGE, LATENT, VAE

CELL_PX, FRAMES_RATIO = 8, 4
PADDED_RATIO = 8  # frames that given pictures are counted by, those of Cosmos 1
GREY = 0.5

Side = Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=16)]


def given_latent(
    vae: VAE, pictures: torch.Tensor, width: int, height: int, length: int, *, further: int
) -> torch.Tensor:
    """Encode pictures [F, H, W, C] of at most `length` frames, followed by grey ones for `further` latent frames.

    Returns the latent frames [1, 16, f, h, w] of the pictures themselves, one for every eight frames behind the first.
    """
    pixels = resize_image(pictures, width, height, "bilinear", "center")[:length, ..., :3]
    latent_frames = (len(pixels) - 1) // PADDED_RATIO + 1
    padded = min(length, (latent_frames + further) * PADDED_RATIO - (PADDED_RATIO - 1))
    frames = torch.full((padded, height, width, 3), GREY)
    frames[: len(pixels)] = pixels[:padded]
    latent: torch.Tensor = vae.encode(frames)
    return latent[:, :, :latent_frames]


@node("CosmosPredict2ImageToVideoLatent", display_name=None, category="conditioning/inpaint",
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
    mask = torch.ones(1, 1, *latent.shape[2:])
    if start_image is not None:
        given = given_latent(vae, start_image, width, height, length, further=1)
        latent[:, :, : given.shape[2]] = given
        mask[:, :, : given.shape[2]] = 0.0
    if end_image is not None:
        given = given_latent(vae, end_image, width, height, length, further=0)
        latent[:, :, -given.shape[2] :] = given
        mask[:, :, -given.shape[2] :] = 0.0
    samples = CausalVideoLatentFormat().process_out(latent) * mask + latent * (1.0 - mask)
    copies = (batch_size, 1, 1, 1, 1)
    return {"samples": samples.repeat(copies), "noise_mask": mask.repeat(copies)}


NODES = (cosmos_predict2_image_to_video_latent,)
