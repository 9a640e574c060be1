"""SPLAT: batches of Gaussians in space, with the members that ComfyUI's nodes use.

`B` batch, `N` Gaussians, `K` coefficients of spherical harmonics. B. Kerbl et al., "3D Gaussian splatting for real-time
radiance field rendering", SIGGRAPH 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from darkroom.engine.media.rotations import matrices_of, multiplied, normalized, quaternions_of

BASE_COLOR = 0.28209479177387814  # the constant spherical harmonic
ATTRIBUTES = ("positions", "scales", "rotations", "opacities", "sh")


@dataclass
class Splat:
    """Gaussians as they are rendered. Items of a batch may be padded; `counts` [B] are then their numbers."""

    positions: torch.Tensor  # [B, N, 3]
    scales: torch.Tensor  # [B, N, 3], standard deviations along the axes
    rotations: torch.Tensor  # [B, N, 4], unit quaternions, w first
    opacities: torch.Tensor  # [B, N, 1], 0..1
    sh: torch.Tensor  # [B, N, K, 3]
    counts: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.positions)

    def numbers(self) -> list[int]:
        """Return the number of Gaussians of each item."""
        return [self.positions.shape[1]] * len(self) if self.counts is None else [int(count) for count in self.counts]

    def item(self, index: int) -> Splat:
        """Return one item without its batch: `[N, ...]`."""
        count = self.numbers()[index]
        return Splat(*(getattr(self, name)[index, :count] for name in ATTRIBUTES))

    def colors(self) -> torch.Tensor:
        """Return the colours seen from no direction in particular, 0..1."""
        return (self.sh[..., 0, :].float() * BASE_COLOR + 0.5).clamp(0, 1)


def harmonics_of(colors: torch.Tensor) -> torch.Tensor:
    """Return the coefficients [N, 1, 3] of colours [N, 3] that are the same from everywhere."""
    return ((colors - 0.5) / BASE_COLOR)[:, None, :]


def merged(splats: Sequence[Splat]) -> Splat:
    """Join batches of one size item by item. Raises ValueError for another size."""
    batch = len(splats[0])
    if any(len(splat) != batch for splat in splats):
        found = ", ".join(str(len(splat)) for splat in splats)
        raise ValueError(f"splats: batches of different sizes; got {found}, expected one size")
    degree = max(splat.sh.shape[2] for splat in splats)
    items = [[_with_degree(splat.item(index), degree) for splat in splats] for index in range(batch)]
    joined = [[torch.cat([getattr(part, name) for part in parts]) for parts in items] for name in ATTRIBUTES]
    numbers = [len(positions) for positions in joined[0]]
    counts = torch.tensor(numbers) if len(set(numbers)) > 1 else None
    made = Splat(*(_stacked(values, max(numbers)) for values in joined))
    return replace(made, counts=counts)


def transformed(splat: Splat, translation: torch.Tensor, rotation: torch.Tensor, scales: torch.Tensor) -> Splat:
    """Turn Gaussians about the origin by a quaternion [4], scale them along the axes [3], and move them [3]."""
    matrix = scales[:, None] * matrices_of(rotation)
    positions = splat.positions @ matrix.to(splat.positions).T + translation.to(splat.positions)
    if scales.min() == scales.max():
        turned = normalized(multiplied(rotation.to(splat.rotations).expand_as(splat.rotations), splat.rotations))
        return replace(splat, positions=positions, scales=splat.scales * float(scales[0]), rotations=turned)
    axes = matrix.to(splat.positions) @ matrices_of(splat.rotations) * splat.scales[..., None, :]
    variances, directions = torch.linalg.eigh(axes @ axes.transpose(-1, -2))
    mirrored = torch.where(torch.linalg.det(directions) < 0, -1.0, 1.0)[..., None, None]
    turned = quaternions_of(directions * mirrored)
    return replace(splat, positions=positions, scales=variances.clamp(min=0).sqrt(), rotations=turned)


def _with_degree(item: Splat, degree: int) -> Splat:
    """Return an item with so many coefficients, those that it lacks 0."""
    missing = degree - item.sh.shape[1]
    return replace(item, sh=torch.nn.functional.pad(item.sh, (0, 0, 0, missing))) if missing else item


def _stacked(values: Sequence[torch.Tensor], count: int) -> torch.Tensor:
    """Stack values [N, ...] of different lengths to `count`, padded with zeros."""
    stacked = values[0].new_zeros(len(values), count, *values[0].shape[1:])
    for index, value in enumerate(values):
        stacked[index, : len(value)] = value
    return stacked
