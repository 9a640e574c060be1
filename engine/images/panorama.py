"""Equirectangular panoramas: directions of their pixels, and views cut out of them.

`H W` pixels. Directions are unit vectors, up the third; places are 0..1 from the left and from the top.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch.nn import functional

GOLDEN = (1 + math.sqrt(5)) / 2
CORNERS = (
    (0, 1, GOLDEN), (0, -1, GOLDEN), (0, 1, -GOLDEN), (0, -1, -GOLDEN),
    (1, GOLDEN, 0), (-1, GOLDEN, 0), (1, -GOLDEN, 0), (-1, -GOLDEN, 0),
    (GOLDEN, 0, 1), (GOLDEN, 0, -1), (-GOLDEN, 0, 1), (-GOLDEN, 0, -1),
)  # fmt: skip
"""Corners of an icosahedron, to which the views look."""


class Views(NamedTuple):
    """Square views of an angle of 90 degrees: rotations [N, 3, 3] from the world to right, down and ahead."""

    rotations: torch.Tensor


def icosahedron_views() -> Views:
    """Return the twelve views to the corners of an icosahedron, level with the horizon."""
    ahead = functional.normalize(torch.tensor(CORNERS, dtype=torch.float32), dim=-1)
    right = functional.normalize(torch.linalg.cross(ahead, torch.tensor((0.0, 0.0, 1.0)).expand_as(ahead)), dim=-1)
    return Views(torch.stack((right, torch.linalg.cross(ahead, right), ahead), dim=1))


def grid(height: int, width: int) -> torch.Tensor:
    """Return the place of the middle of each pixel [H, W, 2]."""
    columns, rows = ((torch.arange(size, dtype=torch.float32) + 0.5) / size for size in (width, height))
    return torch.stack((columns.expand(height, width), rows[:, None].expand(height, width)), dim=-1)


def directions_of(places: torch.Tensor) -> torch.Tensor:
    """Return the directions [..., 3] of places [..., 2] in a panorama."""
    around, down = (1 - places[..., 0]) * (2 * math.pi), places[..., 1] * math.pi
    return torch.stack((down.sin() * around.cos(), down.sin() * around.sin(), down.cos()), dim=-1)


def places_of(directions: torch.Tensor) -> torch.Tensor:
    """Return the places [..., 2] of directions [..., 3] of any length in a panorama."""
    x, y, z = functional.normalize(directions, dim=-1).unbind(-1)
    around = torch.remainder(torch.atan2(y, x) / (2 * math.pi), 1.0)
    return torch.stack((1 - around, z.clamp(-1, 1).acos() / math.pi), dim=-1)


def view_of(panorama: torch.Tensor, rotation: torch.Tensor, side: int) -> torch.Tensor:
    """Return the view [3, side, side] by a rotation [3, 3] of a panorama [3, H, W]."""
    places = 2 * grid(side, side) - 1  # at half a side's distance
    ahead = torch.cat((places, torch.ones_like(places[..., :1])), dim=-1)
    wanted = 2 * places_of(ahead @ rotation) - 1
    return functional.grid_sample(
        panorama[None], wanted[None].to(panorama), mode="bilinear", padding_mode="border", align_corners=False
    )[0]


def seen_at(directions: torch.Tensor, rotation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the place [..., 2] in a view of directions [..., 3], and True for those that it shows [...]."""
    right, down, ahead = (directions @ rotation.T).unbind(-1)
    distance = ahead.clamp(min=1e-12)
    places = torch.stack((right, down), dim=-1) / distance[..., None] / 2 + 0.5
    return places, (ahead > 0) & (places > 0).all(dim=-1) & (places < 1).all(dim=-1)
