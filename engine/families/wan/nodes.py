"""The empty latent of videos whose autoencoder has 16 channels and makes four frames one."""

from __future__ import annotations

from typing import Annotated

import torch

from engine.nodes.base import Int, NodeContext, node
from engine.nodes.sockets import LATENT

LATENT_CHANNELS, CELL_PX, FRAMES_RATIO = 16, 8, 4
MOST = 16384

Side = Annotated[int, Int(min=16, max=MOST, step=16)]


@node("EmptyHunyuanLatentVideo", category="latent/video", python_module="comfy_extras.nodes_hunyuan")
def empty_hunyuan_latent_video(
    context: NodeContext,
    *,
    width: Side = 848,
    height: Side = 480,
    length: Annotated[int, Int(min=1, max=MOST, step=4)] = 25,
    batch_size: Annotated[int, Int(min=1, max=4096)] = 1,
) -> LATENT:
    """Return an empty latent of videos of `length` frames."""
    frames = (length - 1) // FRAMES_RATIO + 1
    shape = [batch_size, LATENT_CHANNELS, frames, height // CELL_PX, width // CELL_PX]
    return {"samples": torch.zeros(shape)}


NODES = (empty_hunyuan_latent_video,)
