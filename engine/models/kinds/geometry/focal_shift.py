"""Focal length and distance of a camera by the points that its pixels show, as MoGe's papers find them.

Points are right by a scale and an unknown move ahead. Of each image 64x64 points are taken. `B` images, `H W` pixels.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from darkroom.engine.models.kinds.geometry.moge_layers import plane_of

SAMPLED = (64, 64)
TOLERANCE = 1e-3
GUESSED_FOV = 60.0  # degrees of the width, where points have no focal length

Values = NDArray[np.float64]


def focal_and_shift(
    points: torch.Tensor, mask: torch.Tensor, fov_degrees: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return focal lengths in half diagonals, and how far to move the points ahead, each [B], float32 on the CPU.

    `points` [B, H, W, 3]; `mask` [B, H, W] has those that count. `fov_degrees` is the angle of the width where known.
    """
    height, width = points.shape[1:3]
    plane = plane_of(height, width, width / height, points.float())
    sampled = functional.interpolate(points.float().movedim(-1, 1), SAMPLED, mode="nearest").movedim(1, -1)
    places = functional.interpolate(plane[None], SAMPLED, mode="nearest")[0].movedim(0, -1)
    counts = functional.interpolate(mask[:, None].float(), SAMPLED, mode="nearest")[:, 0] > 0
    known = None if fov_degrees is None else focal_of(fov_degrees, width / height)
    found = []
    for item, counted in zip(sampled, counts & sampled.isfinite().all(dim=-1), strict=True):
        xyz, uv = (values[counted].double().cpu().numpy() for values in (item, places))
        focal, shift = _fitted(uv, xyz, known)
        if not (math.isfinite(focal) and focal > 0):
            focal, shift = _fitted(uv, xyz, focal_of(GUESSED_FOV, width / height))
        found.append((focal, shift))
    focal_lengths, shifts = torch.tensor(found, dtype=torch.float32).unbind(-1)
    return focal_lengths, shifts


def focal_of(fov_degrees: float, aspect: float) -> float:
    """Return the focal length in half diagonals of an angle of the width of images of that ratio."""
    return aspect / math.sqrt(1 + aspect**2) / math.tan(math.radians(fov_degrees / 2))


def _fitted(uv: Values, xyz: Values, focal: float | None) -> tuple[float, float]:
    """Return the focal length, `focal` where it is known, and the move ahead that project points nearest to `uv`."""
    from scipy.optimize import least_squares  # type: ignore[import-untyped]  # only here: a third of a second

    if len(xyz) < 2:
        return 1.0 if focal is None else focal, 0.0

    def projected(shift: Values) -> Values:
        made: Values = xyz[:, :2] / (xyz[:, 2] + shift)[:, None]
        return made

    def best_focal(shift: Values) -> float:
        made = projected(shift)
        return float((made * uv).sum() / np.square(made).sum()) if focal is None else focal

    def distances(shift: Values) -> Values:
        away: Values = (best_focal(shift) * projected(shift) - uv).ravel()
        return away

    shift = least_squares(distances, x0=0.0, ftol=TOLERANCE, method="lm").x
    return best_focal(shift), float(shift[0])
