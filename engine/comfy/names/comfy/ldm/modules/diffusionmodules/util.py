"""`comfy.ldm.modules.diffusionmodules.util`: building blocks of diffusion networks."""

from __future__ import annotations

import torch
from torch import nn

from darkroom.engine.layers import unet_layers


def timestep_embedding(
    timesteps: torch.Tensor, dim: int, max_period: float = 10000, repeat_only: bool = False
) -> torch.Tensor:
    """Embed timesteps [B] as [B, dim]: sinusoids of falling frequency, or the timestep itself in every place."""
    if repeat_only:
        return timesteps[:, None].expand(-1, dim).clone()
    return unet_layers.timestep_embedding(timesteps, dim, max_period)


def zero_module(module: nn.Module) -> nn.Module:
    """Set the weights of a module to zero and return it."""
    for parameter in module.parameters():
        parameter.detach().zero_()
    return module


def avg_pool_nd(dims: int, *args: object, **kwargs: object) -> nn.Module:
    """Return an average pooling layer. Raises ValueError for other than 1, 2 or 3 dimensions."""
    kinds = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
    if dims not in kinds:
        raise ValueError(f"there is no pooling of {dims} dimensions")
    made: nn.Module = kinds[dims](*args, **kwargs)
    return made
