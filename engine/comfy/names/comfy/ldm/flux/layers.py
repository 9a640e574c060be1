"""`comfy.ldm.flux.layers`: layers without weights of the transformers of Flux and its kin."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from darkroom.engine.comfy.names.comfy.ldm.flux.math import attention, rope
from darkroom.engine.layers import unet_layers

__all__ = ["EmbedND", "apply_mod", "attention", "rope", "timestep_embedding"]


class EmbedND(nn.Module):
    """Rotations of positions with several axes: [B, T, axes] -> [B, 1, T, dim / 2, 2, 2]."""

    def __init__(self, dim: int, theta: int, axes_dim: Sequence[int]) -> None:
        super().__init__()
        self.dim, self.theta, self.axes_dim = dim, theta, axes_dim

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        axes = [rope(ids[..., axis], self.axes_dim[axis], self.theta) for axis in range(ids.shape[-1])]
        return torch.cat(axes, dim=-3).unsqueeze(1)


def timestep_embedding(
    t: torch.Tensor, dim: int, max_period: float = 10000, time_factor: float = 1000.0
) -> torch.Tensor:
    """Embed times [B] of 0..1 as sinusoids [B, dim], in the type of the times where that is one of fractions."""
    scaled = time_factor * t
    embedded = unet_layers.timestep_embedding(scaled, dim, max_period)
    return embedded.to(scaled) if scaled.is_floating_point() else embedded


def apply_mod(
    tensor: torch.Tensor,
    m_mult: torch.Tensor,
    m_add: torch.Tensor | None = None,
    modulation_dims: Sequence[tuple[int, int | None, int]] | None = None,
) -> torch.Tensor:
    """Scale and shift tokens [B, T, D]: all by one row, or in place each range of `modulation_dims` by its row."""
    if modulation_dims is None:
        return tensor * m_mult if m_add is None else torch.addcmul(m_add, tensor, m_mult)
    for start, end, row in modulation_dims:
        tensor[:, start:end] *= m_mult[:, row : row + 1]
        if m_add is not None:
            tensor[:, start:end] += m_add[:, row : row + 1]
    return tensor
