"""Splats as grids: how dense their Gaussians are in each voxel, and their colors.

`N` Gaussians, `x y z` voxels, `M` voxels of the window around one Gaussian.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.rotations import matrices_of
from darkroom.engine.media.splats.splat import Splat

REACH_SQUARED = 9.0  # of a Gaussian, in standard deviations
MARGIN = 4.0  # around all, in median deviations
LEAST_SCALE = 1e-8
GAUSSIANS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Density:
    """A grid [x, y, z] with sums of weighted colors [x, y, z, 3] and of weights, its first voxel [3], and its step."""

    values: torch.Tensor
    colors: torch.Tensor
    weights: torch.Tensor
    origin: torch.Tensor
    step: float


def shape_of(splat: Splat, resolution: int) -> tuple[int, int, int]:
    """Return the numbers of voxels that the grid of one splat has, `resolution` along its longest side."""
    low, high, step = _bounds(splat, resolution)
    x, y, z = (((high - low) / step).ceil().long() + 1).tolist()
    return x, y, z


def density_of(splat: Splat, resolution: int, window: int, sharpness: float, cancel: CancelToken) -> Density:
    """Return the density of one splat, without a batch, with at least one Gaussian.

    Each counts within three deviations, at most `window` voxels from its middle. A sharpness above 1 gives colors to
    the densest Gaussian of a voxel; theirs are held as float16.
    """
    low, _, step = _bounds(splat, resolution)
    shape = torch.tensor(shape_of(splat, resolution))
    count = int(shape.prod())
    opacities, colors = splat.opacities.float().reshape(-1), splat.colors()
    positions, inverse = splat.positions.float(), _inverse_covariances(splat)
    windows = (3 * splat.scales.float().amax(1) / step).ceil().long().clamp(1, window)
    values, color_sums = torch.zeros(count), torch.zeros(count, 3, dtype=torch.float16)
    weight_sums = torch.zeros(count, dtype=torch.float16) if sharpness != 1 else values
    for half in range(1, window + 1):
        lines = torch.arange(-half, half + 1.0)
        offsets = torch.cartesian_prod(lines, lines, lines)  # [M, 3]
        for part in torch.split((windows == half).nonzero()[:, 0], GAUSSIANS_AT_ONCE):
            cancel.check()
            cells = ((positions[part] - low) / step).round()[:, None] + offsets
            away = (low + cells * step) - positions[part][:, None]
            squared = torch.einsum("nmi,nij,nmj->nm", away, inverse[part], away)
            weights = opacities[part, None] * torch.exp(-0.5 * squared) * (squared < REACH_SQUARED)
            x, y, z = torch.minimum(cells.long().clamp(min=0), shape - 1).unbind(-1)
            index = ((x * shape[1] + y) * shape[2] + z).reshape(-1)
            values.index_add_(0, index, weights.reshape(-1))
            sharp = weights**sharpness if sharpness != 1 else weights
            weighted = (sharp[..., None] * colors[part, None]).reshape(-1, 3)
            color_sums.index_add_(0, index, weighted.half())
            if sharpness != 1:
                weight_sums.index_add_(0, index, sharp.reshape(-1).half())
    grid = shape.tolist()
    return Density(values.reshape(grid), color_sums.reshape(*grid, 3), weight_sums.reshape(grid), low, step)


def _bounds(splat: Splat, resolution: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return the corners [3] of the grid and the side of a voxel."""
    positions = splat.positions.float()
    margin = MARGIN * splat.scales.float().median()
    low, high = positions.amin(0) - margin, positions.amax(0) + margin
    return low, high, float(((high - low).max() / resolution).clamp(min=LEAST_SCALE))


def _inverse_covariances(splat: Splat) -> torch.Tensor:
    axes = matrices_of(splat.rotations.float())
    inverse = 1.0 / splat.scales.float().clamp(min=LEAST_SCALE).square()
    return (axes * inverse[:, None, :]) @ axes.mT
