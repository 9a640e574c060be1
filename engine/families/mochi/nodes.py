"""Node classes made for Mochi."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX
from darkroom.engine.nodes.library.conditioning.image_conditioning import Count
from darkroom.engine.nodes.sockets import LATENT
from darkroom.engine.nodes.widgets import Int

CHANNELS, CELL_PX, FRAMES_RATIO = 12, 8, 6

Side = Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=16)]


@node(
    "EmptyMochiLatentVideo", display_name=None, category="model/latent/mochi", python_module="comfy_extras.nodes_mochi"
)
def empty_mochi_latent_video(
    context: NodeContext,
    *,
    width: Side = 848,
    height: Side = 480,
    length: Annotated[int, Int(min=7, max=MAX_SIDE_PX, step=6)] = 25,
    batch_size: Count = 1,
) -> LATENT:
    """Return an empty latent of videos of `length` frames."""
    frames = (length - 1) // FRAMES_RATIO + 1
    return {"samples": torch.zeros([batch_size, CHANNELS, frames, height // CELL_PX, width // CELL_PX])}


NODES = (empty_mochi_latent_video,)
