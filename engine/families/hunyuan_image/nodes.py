"""Node classes made for HunyuanImage 2.1: empty latents, and a drawn image as what its refiner starts from."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX, with_options
from darkroom.engine.nodes.library.conditioning.image_conditioning import Negative, Positive, Start
from darkroom.engine.nodes.sockets import CONDITIONING, LATENT
from darkroom.engine.nodes.widgets import Float, Int

MODULE = "comfy_extras.nodes_hunyuan"
CHANNELS, CELL_PX = 64, 32
STARTED_CHANNELS = 32  # of the empty latent for the refiner; samplers give it the refiner's number
VIDEO_AXES = 5

Side = Annotated[int, Int(min=64, max=MAX_SIDE_PX, step=32)]


@node("EmptyHunyuanImageLatent", display_name=None, category="model/latent/hunyuan image", python_module=MODULE)
def empty_hunyuan_image_latent(
    context: NodeContext,
    *,
    width: Side = 2048,
    height: Side = 2048,
    batch_size: Annotated[int, Int(min=1, max=4096)] = 1,
) -> LATENT:
    return {"samples": torch.zeros([batch_size, CHANNELS, height // CELL_PX, width // CELL_PX])}


@node(
    "HunyuanRefinerLatent",
    display_name="Hunyuan Latent Refiner",
    category="model/conditioning/hunyuan video",
    python_module=MODULE,
    advanced=("noise_augmentation",),
)
def hunyuan_refiner_latent(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    latent: LATENT,
    noise_augmentation: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 0.10,
) -> tuple[Positive, Negative, Start]:
    """Give the refiner the latent of an image to redraw, with some noise on it, and an empty latent to start from."""
    drawn: torch.Tensor = latent["samples"]
    if drawn.ndim != VIDEO_AXES:
        raise ValueError(
            f"latent: it is not one of the refiner's VAE; got a latent of {drawn.ndim} dimensions, expected "
            f"{VIDEO_AXES} (encode the image by the refiner's VAE)"
        )
    options = {"concat_latent_image": drawn, "noise_augmentation": noise_augmentation}
    start = torch.zeros([drawn.shape[0], STARTED_CHANNELS, *drawn.shape[2:]])
    return with_options(positive, **options), with_options(negative, **options), {"samples": start}


NODES = (empty_hunyuan_image_latent, hunyuan_refiner_latent)
