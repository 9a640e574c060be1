"""Gaussian noise that moves with a video (Burgert et al. 2025, "Go-with-the-Flow", arXiv 2501.08331, section 3).

Each cell has noise and a weight. From frame to frame the cells move along the optical flow: those that meet are added
by their weights, and what no cell reaches is taken from where it came from. Cells that share a source get new noise of
which their mean is subtracted, so that all have a deviation of one again. `C` channels, `H W` cells.
"""

from __future__ import annotations

import torch
from torch.nn import functional

LEAST_WEIGHT, WEIGHT_POWER = 1e-5, 0.9999  # by which weights stay above nothing and near one


class WarpedNoise:
    """Noise [C, H, W], drawn by torch's global generator, and the weights of its cells."""

    def __init__(self, num_channels: int, height: int, width: int, device: torch.device) -> None:
        self._noise = torch.randn(num_channels, height, width, device=device)
        self._weights = torch.ones(height, width, device=device)

    def pooled(self, side: int) -> torch.Tensor:
        """Return the noise in cells of `side` x `side` of these, [C, H / side, W / side], of a deviation of one."""
        signs = self._weights / (self._weights**2).sqrt()
        return functional.avg_pool2d(self._noise * signs, side) * side

    def move(self, flow: torch.Tensor) -> None:
        """Move the noise along a flow [2, H, W] in cells: how far right, and how far down."""
        targets, is_inside = _targets(flow)
        reached = _summed(torch.ones_like(self._weights)[None], targets)[0] > 0
        # Cells that leave stay where they are, without noise.
        pushed, pushed_weights = torch.where(is_inside, self._noise, 0.0), torch.where(is_inside, self._weights, 1.0)
        pulled, pulled_weights = _pulled(torch.cat([self._weights[None], self._noise]), flow)
        pulled, pulled_weights = torch.where(reached, 0.0, pulled), torch.where(reached, 1.0, pulled_weights)
        width = pushed.shape[2]
        noise, counts = _with_new_noise(torch.cat([pushed, pulled], dim=2))
        pushed, pulled = noise[:, :, :width], noise[:, :, width:]
        pushed_weights, pulled_weights = pushed_weights / counts[:, :width], pulled_weights / counts[:, width:]
        total = _summed(pushed_weights[None], targets)[0]
        squares = _summed(pushed_weights[None] ** 2, targets)[0]
        added = _summed(pushed * pushed_weights, targets) / squares.sqrt()
        weights = torch.where(reached, total, pulled_weights)
        self._noise = torch.where(reached, added, pulled)
        self._weights = (weights / weights.mean() + LEAST_WEIGHT) ** WEIGHT_POWER


def _targets(flow: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of the cell [H * W] that each cell moves to, -1 for none, and [H, W] whether it stays inside.

    A cell that leaves has its own number.
    """
    _, height, width = flow.shape
    rows, columns = (torch.arange(size, device=flow.device) for size in (height, width))
    across, down = (columns + flow[0]).round(), (rows[:, None] + flow[1]).round()
    is_inside = (across >= 0) & (across < width) & (down >= 0) & (down < height)
    steps = torch.where(is_inside, flow.round(), 0.0).long()
    x, y = columns + steps[0], rows[:, None] + steps[1]
    is_kept = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    return torch.where(is_kept, y * width + x, -1).flatten(), is_inside


def _summed(cells: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the sums [C, H, W] of cells by the cells that they move to."""
    flat = cells.flatten(1)
    sums = flat.new_zeros(flat.shape[0], flat.shape[1] + 1)  # the last one has those that move nowhere
    sums.index_add_(1, torch.where(targets < 0, flat.shape[1], targets), flat)
    return sums[:, :-1].view(cells.shape)


def _pulled(state: torch.Tensor, flow: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noise [C, H, W] and weights [H, W] of the cells from which the flow leads to each, 0 and 1 for none."""
    _, height, width = flow.shape
    rows, columns = (torch.arange(size, device=flow.device, dtype=flow.dtype) for size in (height, width))
    x, y = (columns - flow[0]) / (width - 1) * 2 - 1, (rows[:, None] - flow[1]) / (height - 1) * 2 - 1
    grid = torch.stack([x, y], dim=-1)[None]
    found = functional.grid_sample(state[None], grid, mode="nearest", align_corners=True)[0]
    return found[1:], torch.where(found[0] == 0, 1.0, found[0])


def _with_new_noise(noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noise [C, H, W] of a deviation of one where cells share a source, and the numbers [H, W] that share it.

    Cells of one source have the same number in the first channel.
    """
    _, source, numbers = torch.unique(noise[0], return_inverse=True, return_counts=True)
    counts = numbers[source]
    new = torch.randn_like(noise)
    means = new.new_zeros(noise.shape[0], len(numbers)).index_add_(1, source.flatten(), new.flatten(1)) / numbers
    return noise / counts**0.5 + (new - means[:, source.flatten()].view(noise.shape)), counts
