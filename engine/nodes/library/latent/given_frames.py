"""Images that videos begin or end with, as latents with a mask: those of Cosmos, 1 and 2."""

from __future__ import annotations

import torch

from darkroom.engine.images.pixels import resize_image
from darkroom.engine.models.vae import Vae
from darkroom.engine.nodes.sockets import Latent

PADDED_RATIO = 8  # frames that given images are counted by, those of Cosmos 1
GREY = 0.5


def given_latent(vae: Vae, images: torch.Tensor, width: int, height: int, length: int, *, further: int) -> torch.Tensor:
    """Encode images [F, H, W, C] of at most `length` frames, followed by grey ones for `further` latent frames.

    Returns the latent frames [1, C, f, h, w] of the images themselves, one for every eight frames behind the first.
    """
    pixels = resize_image(images, width, height, "bilinear", "center")[:length, ..., :3]
    latent_frames = (len(pixels) - 1) // PADDED_RATIO + 1
    padded = min(length, (latent_frames + further) * PADDED_RATIO - (PADDED_RATIO - 1))
    frames = torch.full((padded, height, width, 3), GREY)
    frames[: len(pixels)] = pixels[:padded]
    latent: torch.Tensor = vae.encode(frames)
    return latent[:, :, :latent_frames]


def with_given_frames(
    vae: Vae,
    latent: torch.Tensor,
    width: int,
    height: int,
    length: int,
    start_image: torch.Tensor | None,
    end_image: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write given images into an empty latent [1, C, f, h, w]; return it and the mask [1, 1, f, h, w] of the rest."""
    mask = torch.ones(1, 1, *latent.shape[2:])
    if start_image is not None:
        given = given_latent(vae, start_image, width, height, length, further=1)
        latent[:, :, : given.shape[2]] = given
        mask[:, :, : given.shape[2]] = 0.0
    if end_image is not None:
        given = given_latent(vae, end_image, width, height, length, further=0)
        latent[:, :, -given.shape[2] :] = given
        mask[:, :, -given.shape[2] :] = 0.0
    return latent, mask


def repeated(latent: torch.Tensor, mask: torch.Tensor, batch_size: int) -> Latent:
    """Return the LATENT of `batch_size` videos that begin and end alike."""
    copies = (batch_size, 1, 1, 1, 1)
    return {"samples": latent.repeat(copies), "noise_mask": mask.repeat(copies)}
