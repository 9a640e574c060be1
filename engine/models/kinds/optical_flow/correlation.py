"""Correlation of all cells of one feature map with all of another, at several sizes of the other.

`B` batch, `C` channels, `h w` cells.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

RADIUS = 4  # cells around the one that a flow leads to


class CorrelationPyramid:
    """Scalar products of the features of all pairs of cells, B * (h * w)² values and a third more for smaller sizes."""

    def __init__(self, first: torch.Tensor, second: torch.Tensor, num_levels: int) -> None:
        """Correlate feature maps [B, C, h, w]."""
        batch, channels, height, width = first.shape
        products = torch.einsum("bcm,bcn->bmn", first.flatten(2), second.flatten(2)) / math.sqrt(channels)
        self._levels = [products.view(batch * height * width, 1, height, width)]
        for _ in range(num_levels - 1):
            self._levels.append(functional.avg_pool2d(self._levels[-1], 2))

    def around(self, flow: torch.Tensor) -> torch.Tensor:
        """Return the products around where a flow [B, 2, h, w] leads, [B, levels * 81, h, w].

        Values between cells are interpolated; those outside of the map are 0.
        """
        batch, _, height, width = flow.shape
        steps = torch.arange(-RADIUS, RADIUS + 1, device=flow.device, dtype=flow.dtype)
        columns, rows = (torch.arange(size, device=flow.device, dtype=flow.dtype) for size in (width, height))
        x, y = ((flow[:, 0] + columns).reshape(-1, 1, 1), (flow[:, 1] + rows[:, None]).reshape(-1, 1, 1))
        found = []
        for level, products in enumerate(self._levels):
            sides = products.shape[2:]
            # The first axis of the neighbourhood goes right and the second down.
            right, down = (
                _normalised(x / 2**level + steps[:, None], sides[1]),
                _normalised(y / 2**level + steps, sides[0]),
            )
            shape = (len(right), len(steps), len(steps))
            grid = torch.stack((right.expand(shape), down.expand(shape)), dim=-1)
            values = functional.grid_sample(products, grid, mode="bilinear", align_corners=True)
            found.append(values.view(batch, height, width, -1))
        return torch.cat(found, dim=-1).movedim(-1, 1).contiguous()


def _normalised(position: torch.Tensor, size: int) -> torch.Tensor:
    """Return positions in cells as those of `grid_sample`, -1 the first cell and 1 the last."""
    return 2 * position / (size - 1) - 1 if size > 1 else position
