"""Means of the cells below boxes (He et al., "Mask R-CNN", arXiv 1703.06870: region of interest alignment)."""

from __future__ import annotations

import torch

LEAST_CELLS = 1.0  # along a side of a box
MAX_SAMPLES = 1 << 12  # along a cell of what is pooled


def pooled_regions(cells: torch.Tensor, boxes: torch.Tensor, size: int) -> torch.Tensor:
    """Return the regions [N, C, size, size] of cells [C, h, w] below boxes [N, 4] of centre, width, height of 0..1.

    Each value is the mean of samples, about one a cell, which are 0 outside of the image. Raises ValueError for a box
    many times as large as the image.
    """
    height, width = cells.shape[1:]
    regions = []
    for x, y, across, down in boxes.float().tolist():
        rows = _weights((y - down / 2) * height, (y + down / 2) * height, height, size)
        columns = _weights((x - across / 2) * width, (x + across / 2) * width, width, size)
        regions.append(rows.to(cells) @ cells @ columns.to(cells).T)
    return torch.stack(regions)


def _weights(start: float, end: float, num_cells: int, size: int) -> torch.Tensor:
    """Return the share [size, num_cells] of each cell of a line in each part of the stretch from `start` to `end`."""
    length = max(end - start, LEAST_CELLS) / size
    num_samples = -int(-length // 1)
    if num_samples > MAX_SAMPLES:
        raise ValueError(f"bboxes: got a box {length * size / num_cells:.0f} times as large as the image")
    places = start + (torch.arange(size * num_samples) + 0.5) * (length / num_samples)
    is_inside = (places >= -1.0) & (places <= num_cells)
    nearness = 1 - (places.clamp(0, num_cells - 1)[:, None] - torch.arange(num_cells)).abs()
    weights = nearness.clamp(min=0) * is_inside[:, None]
    return weights.view(size, num_samples, num_cells).mean(dim=1)
