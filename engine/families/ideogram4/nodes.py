"""Node classes made for Ideogram 4: its noise levels."""

from __future__ import annotations

import math
from typing import Annotated

import torch

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import SIGMAS
from darkroom.engine.nodes.widgets import Float, Int

LEAST_LOG_SNR, MOST_LOG_SNR = -15.0, 18.0
REFERENCE_PX = 512 * 512

Side = Annotated[int, Int(min=256, max=8192, step=16)]


def ideogram4_sigmas(steps: int, width: int, height: int, mu: float, std: float) -> torch.Tensor:
    """Return the noise levels [steps + 1] of an image of a size in pixels: quantiles of a logit-normal distribution.

    Esser et al. 2024, arXiv 2403.03206, section 3.1. `mu` is its mean for 512x512, larger images have more noise.
    """
    mean = mu + 0.5 * math.log(width * height / REFERENCE_PX)
    quantiles = torch.linspace(0.0, 1.0, steps + 1, dtype=torch.float64)
    clean: torch.Tensor = 1.0 - torch.special.expit(mean + std * torch.special.ndtri(quantiles))
    least, most = (1.0 / (1.0 + math.exp(0.5 * log_snr)) for log_snr in (MOST_LOG_SNR, LEAST_LOG_SNR))
    sigmas: torch.Tensor = (1.0 - clean.clamp(least, most)).flip(0)
    sigmas[-1] = 0.0
    return sigmas.float()


@node("Ideogram4Scheduler", display_name="Ideogram 4 Scheduler", category="model/sampling/schedulers",
      python_module="comfy_extras.nodes_ideogram4")  # fmt: skip
def ideogram4_scheduler(
    context: NodeContext,
    *,
    steps: Annotated[int, Int(min=1, max=200)] = 20,
    width: Side = 1024,
    height: Side = 1024,
    mu: Annotated[float, Float(min=-10.0, max=10.0, step=0.05)] = 0.0,
    std: Annotated[float, Float(min=0.1, max=5.0, step=0.05)] = 1.75,
) -> SIGMAS:
    """Return the noise levels of an image of a size in pixels."""
    return ideogram4_sigmas(steps, width, height, mu, std)


NODES = (ideogram4_scheduler,)
