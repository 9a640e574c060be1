"""Points of heatmaps, more exact than a cell: distribution-aware decoding (Zhang et al. 2020, arXiv 1910.06278).

`K` points, `h w` cells of a heatmap.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

BLUR_SIGMA, BLUR_RADIUS = 2.0, 5  # in cells
LEAST, MOST = 1e-3, 50.0  # of a heatmap whose logarithm is taken
EPSILON = float(np.finfo(np.float32).eps)
Floats = NDArray[np.float32]


class HeatmapPoints(NamedTuple):
    """Places [K, 2], x and y in cells, and scores [K]; places of points that are not there are -1."""

    places: Floats
    scores: Floats


def heatmap_points(heatmaps: torch.Tensor) -> HeatmapPoints:
    """Return the point of each heatmap [K, h, w]: its highest cell, moved to where a bell curve has its top.

    The curve is that of the logarithms of the blurred heatmap around the cell.
    """
    heatmaps = heatmaps.float()
    count, height, width = heatmaps.shape
    best, cells = heatmaps.flatten(1).max(dim=1)
    rows, columns = cells // width, cells % width
    blurred = _blurred(heatmaps)
    tops = blurred.amax(dim=(1, 2))
    scale = torch.where(tops > 0, best / tops, 1.0)
    step = torch.arange(-1, 2, device=heatmaps.device)
    near_rows = (rows[:, None] + step).clamp(0, height - 1)[:, :, None]  # [K, 3, 1]
    near_columns = (columns[:, None] + step).clamp(0, width - 1)[:, None]  # [K, 1, 3]
    around = blurred[torch.arange(count, device=heatmaps.device)[:, None, None], near_rows, near_columns]
    logs = (around * scale[:, None, None]).clamp(LEAST, MOST).log().cpu().numpy()  # [K, 3, 3]
    places = torch.stack((columns, rows), dim=1).float().cpu().numpy() - _steps_to_top(logs)
    scores: Floats = best.cpu().numpy()
    places[scores <= 0] = -1
    return HeatmapPoints(places.astype(np.float32), scores)


def _blurred(heatmaps: torch.Tensor) -> torch.Tensor:
    offsets = torch.arange(-BLUR_RADIUS, BLUR_RADIUS + 1, dtype=torch.float64)
    bell = torch.exp(-(offsets**2) / (2 * BLUR_SIGMA**2))
    kernel = (bell / bell.sum()).to(heatmaps)
    blurred = functional.conv2d(heatmaps[:, None], kernel.view(1, 1, -1, 1), padding=(BLUR_RADIUS, 0))
    return functional.conv2d(blurred, kernel.view(1, 1, 1, -1), padding=(0, BLUR_RADIUS))[:, 0]


def _steps_to_top(logs: Floats) -> NDArray[np.float64]:
    """Return the Newton steps [K, 2] from tops of curves to the middle cells of [K, 3, 3]; 0 where there is no top."""
    (upper_left, above, _), (left, middle, right), (_, below, lower_right) = logs.transpose(1, 2, 0)
    slopes = np.stack(((right - left) / 2, (below - above) / 2), axis=-1)
    bend_x = right - 2 * middle + left + EPSILON
    bend_y = below - 2 * middle + above + EPSILON
    twist = (lower_right - right - below + middle + middle - left - above + upper_left) / 2
    hessian = np.stack((bend_x, twist, twist, bend_y), axis=-1).reshape(-1, 2, 2).astype(np.float64)
    is_bent = np.abs(np.linalg.det(hessian)) > 0
    steps = np.zeros((len(logs), 2))
    steps[is_bent] = np.linalg.solve(hessian[is_bent], slopes[is_bent, :, None])[..., 0]
    return steps
