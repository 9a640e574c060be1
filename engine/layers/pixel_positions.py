"""Positions of the pixels of a patch as products of cosines, for networks that draw the pixels of each patch."""

from __future__ import annotations

import torch


def position_cosines(side: int, frequencies: torch.Tensor) -> torch.Tensor:
    """Return products of cosines [side**2, F**2] of a patch's pixels, row by row, high frequencies weighted down.

    `frequencies` are F half turns along a side, in the type and on the device of the result.
    """
    along = torch.linspace(0, 1, side, device=frequencies.device, dtype=frequencies.dtype)
    rows, columns = (item.reshape(-1, 1, 1) for item in torch.meshgrid(along, along, indexing="ij"))
    across, down = frequencies[None, :, None], frequencies[None, None, :]
    waves = torch.cos(columns * across * torch.pi) * torch.cos(rows * down * torch.pi)
    return (waves / (1 + across * down)).flatten(1)
