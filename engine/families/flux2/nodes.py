"""Node classes made for Flux.2: sizes and noise levels."""

from __future__ import annotations

import math
from typing import Annotated

import torch

from darkroom.engine.families.flux2.vae_files import Flux2LatentFormat
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX
from darkroom.engine.nodes.sockets import LATENT, SIGMAS
from darkroom.engine.nodes.widgets import Int

MODULE = "comfy_extras.nodes_flux"
VERSION = "0.30.0"  # of ComfyUI, whose these are
CELL_PX = Flux2LatentFormat.spacial_downscale_ratio
# Shifts by the number of cells (slope, start): at 10 steps, and at 200 or for more than `MANY_CELLS` at any number.
SHIFT_AT_10, SHIFT_AT_200 = (8.73809524e-05, 1.89833333), (0.00016927, 0.45666666)
MANY_CELLS = 4300

EmptySide = Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=16)]
Side = Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=1)]


@node("EmptyFlux2LatentImage", display_name="Empty Flux 2 Latent", category="model/latent/flux", python_module=MODULE,
      comfyui_version=VERSION)  # fmt: skip
def empty_flux2_latent_image(
    context: NodeContext,
    *,
    width: EmptySide = 1024,
    height: EmptySide = 1024,
    batch_size: Annotated[int, Int(min=1, max=4096)] = 1,
) -> LATENT:
    channels = Flux2LatentFormat.latent_channels
    return {"samples": torch.zeros([batch_size, channels, height // CELL_PX, width // CELL_PX])}


def shift_of(num_cells: int, steps: int) -> float:
    """Return the shift of the noise levels of an image of so many cells, by the number of steps."""
    at_10, at_200 = (slope * num_cells + start for slope, start in (SHIFT_AT_10, SHIFT_AT_200))
    if num_cells > MANY_CELLS:
        return at_200
    slope = (at_200 - at_10) / 190.0
    return slope * steps + (at_200 - 200.0 * slope)


@node("Flux2Scheduler", display_name=None, category="model/sampling/schedulers", python_module=MODULE,
      comfyui_version=VERSION)  # fmt: skip
def flux2_scheduler(
    context: NodeContext,
    *,
    steps: Annotated[int, Int(min=1, max=4096)] = 20,
    width: Side = 1024,
    height: Side = 1024,
) -> SIGMAS:
    scale = math.exp(shift_of(round(width * height / CELL_PX**2), steps))
    times = torch.linspace(1, 0, steps + 1)
    return scale / (scale + (1 / times - 1))


NODES = (empty_flux2_latent_image, flux2_scheduler)
