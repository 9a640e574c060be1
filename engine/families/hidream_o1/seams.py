"""Smoothing of the seams between the patches of HiDream-O1: means of predictions of shifted images.

`B` batch, `N` shifts, `H W` pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from darkroom.engine.diffusion.host_levels import on_host
from darkroom.engine.families.hidream_o1.transformer import PATCH_PX

Shift = tuple[int, int]  # down and to the right, in pixels
BORDER_FADE_PX = 4  # behind the first patch from each border, where shifted images wrap around
LEAST_WEIGHT = 1e-3
QUARTER, HALF = PATCH_PX // 4, PATCH_PX // 2

# Shifts by pattern and number of passes: with an image that is not shifted first, or around the grid alone.
PATTERNS: Mapping[str, Mapping[int, tuple[Shift, ...]]] = {
    "single_shift": {
        2: ((0, 0), (HALF, HALF)),
        4: ((0, 0), (HALF, 0), (0, HALF), (HALF, HALF)),
        8: (
            (0, 0), (HALF, 0), (0, HALF), (HALF, HALF), (QUARTER, QUARTER), (HALF + QUARTER, QUARTER),
            (QUARTER, HALF + QUARTER), (HALF + QUARTER, HALF + QUARTER),
        ),
    },
    "symmetric": {
        2: ((-8, -8), (8, 8)),
        4: ((-8, -8), (8, -8), (-8, 8), (8, 8)),
        8: ((-12, -12), (4, -12), (-12, 4), (4, 4), (-4, -4), (12, -4), (-4, 12), (12, 12)),
    },
}  # fmt: skip
# Numbers of passes, which grow towards the end.
LEVELS: Mapping[str, tuple[int, ...]] = {"2": (2,), "4": (4,), "ramp_2_4": (2, 4), "ramp_2_4_8": (2, 4, 8)}


def window_of(shift: Shift, device: torch.device) -> torch.Tensor:
    """Return a Hann window [32, 32] of a patch's pixels, highest in the middle of the patches of a shifted image."""
    along = torch.arange(PATCH_PX, device=device)
    down, right = (
        0.5 * (1 + torch.cos(torch.pi * ((along - (HALF - part) % PATCH_PX + HALF) % PATCH_PX - HALF) / HALF))
        for part in shift
    )
    return down[:, None] * right[None, :]


def inside_borders(height: int, width: int, device: torch.device) -> torch.Tensor:
    """Return a mask [H, W] that is 0 within a patch of the borders and fades to 1 behind it."""

    def along(length: int) -> torch.Tensor:
        pixels = torch.arange(length, dtype=torch.float32, device=device)
        return ((torch.minimum(pixels, length - 1 - pixels) - PATCH_PX) / BORDER_FADE_PX).clamp(0, 1)

    return along(height)[:, None] * along(width)[None, :]


@dataclass(frozen=True, slots=True)
class SeamSmoothing:
    """A wrapper of the network between two noise levels, `highest` and `lowest`.

    `shifts` are those of stretches of equal length between them, `blend` how predictions become one, `strength` the
    share of the result.
    """

    shifts: Sequence[Sequence[Shift]]
    blend: str
    strength: float
    highest: float
    lowest: float

    def wrap(self, executor: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the network's output [B, 3, H, W], smoothed where the noise level is between the two."""
        x, options = args[0], args[5]
        prediction = executor(*args, **kwargs)
        sigma = float(on_host(options["sigmas"])[0])
        if not self.lowest <= sigma <= self.highest:
            return prediction
        shifts = self._shifts_at(sigma)
        predictions = [
            prediction
            if shift == (0, 0)
            else executor(x.roll(shift, dims=(-2, -1)), *args[1:], **kwargs).roll((-shift[0], -shift[1]), dims=(-2, -1))
            for shift in shifts
        ]
        blended = self._blended(torch.stack(predictions), shifts)
        share = inside_borders(x.shape[-2], x.shape[-1], x.device).to(prediction.dtype) * self.strength
        return prediction * (1.0 - share) + blended * share

    def _shifts_at(self, sigma: float) -> Sequence[Shift]:
        passed = (self.highest - sigma) / max(self.highest - self.lowest, 1e-11)
        return self.shifts[min(int(passed * len(self.shifts)), len(self.shifts) - 1)]

    def _blended(self, stacked: torch.Tensor, shifts: Sequence[Shift]) -> torch.Tensor:
        """Return one prediction of several [N, B, C, H, W]."""
        if self.blend == "median":
            return stacked.median(dim=0).values
        if self.blend == "average":
            return stacked.mean(dim=0)
        height, width = stacked.shape[-2:]
        tiles = torch.stack([window_of(shift, stacked.device) for shift in shifts]).to(stacked.dtype)
        weights = tiles.repeat(1, -(-height // PATCH_PX), -(-width // PATCH_PX))[:, :height, :width]
        total = weights.sum(dim=0, keepdim=True)
        shares = torch.where(total < LEAST_WEIGHT, 1.0 / len(shifts), weights / total.clamp(min=1e-8))
        return (stacked * shares[:, None, None]).sum(dim=0)
