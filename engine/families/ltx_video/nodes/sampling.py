"""Noise levels of LTX-Video, which shift with the number of cells of a video."""

from __future__ import annotations

import math
from typing import Annotated

import torch

from darkroom.engine.diffusion.model_sampling_variants import FluxFlow
from darkroom.engine.families.ltx_video.nodes.videos import MODULE
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.sampling.model_sampling import sampled_with
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import LATENT, MODEL, SIGMAS, Latent
from darkroom.engine.nodes.widgets import Flag, Float, Int

FEWEST_CELLS, MOST_CELLS = 1024, 4096  # at which the shift is `base_shift` and `max_shift`

Shift = Annotated[float, Float(min=0.0, max=100.0, step=0.01)]


def shift_of(latent: Latent | None, max_shift: float, base_shift: float) -> float:
    """Return the shift of a latent [B, C, f, h, w], linear in its cells; of as many as shift most without one."""
    cells = MOST_CELLS if latent is None else math.prod(latent["samples"].shape[2:])
    slope = (max_shift - base_shift) / (MOST_CELLS - FEWEST_CELLS)
    return cells * slope + base_shift - slope * FEWEST_CELLS


@node("ModelSamplingLTXV", display_name=None, category="model/patch/ltxv", python_module=MODULE)
def model_sampling_ltxv(
    context: NodeContext,
    *,
    model: MODEL,
    max_shift: Shift = 2.05,
    base_shift: Shift = 0.95,
    latent: Annotated[LATENT | None, Optional()] = None,
) -> MODEL:
    """Set a shift that is linear in the cells of the latent."""
    return sampled_with(model, FluxFlow(shift_of(latent, max_shift, base_shift)))


@node(
    "LTXVScheduler",
    display_name=None,
    category="model/sampling/schedulers",
    python_module=MODULE,
    advanced=("stretch", "terminal"),
)
def ltxv_scheduler(
    context: NodeContext,
    *,
    steps: Annotated[int, Int(min=1, max=10000)] = 20,
    max_shift: Shift = 2.05,
    base_shift: Shift = 0.95,
    stretch: Annotated[bool, Flag(extra={"tooltip": "Stretch the sigmas to be in the range [terminal, 1]."})] = True,
    terminal: Annotated[
        float,
        Float(
            min=0.0,
            max=0.99,
            step=0.01,
            extra={"tooltip": "The terminal value of the sigmas after stretching."},
        ),
    ] = 0.1,
    latent: Annotated[LATENT | None, Optional()] = None,
) -> SIGMAS:
    """Return levels of a shift that is linear in the cells of the latent; with `stretch` the last one is `terminal`."""
    factor = math.exp(shift_of(latent, max_shift, base_shift))
    sigmas = torch.linspace(1.0, 0.0, steps + 1)
    sigmas = torch.where(sigmas != 0, factor / (factor + (1 / sigmas - 1)), 0.0)
    if stretch:
        is_noisy = sigmas != 0
        missing = 1.0 - sigmas[is_noisy]
        sigmas[is_noisy] = 1.0 - missing / (missing[-1] / (1.0 - terminal))
    return sigmas


NODES = (model_sampling_ltxv, ltxv_scheduler)
