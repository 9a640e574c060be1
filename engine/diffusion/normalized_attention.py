"""Normalized attention guidance: Chen et al. 2025 (arXiv 2505.21179), for distilled models with a negative prompt."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from darkroom.engine.diffusion.options import Options

POSITIVE, NEGATIVE = 0, 1  # sides, as `cond_or_uncond` names them
LEAST_NORM = 1e-6


@dataclass(frozen=True, slots=True)
class NormalizedAttention:
    """A patch of what attention returns (`attn1_output_patch`).

    Features are moved from those of the negative prompt by `scale`, kept within `tau` times their L1 norm, and blended
    with the features before by `alpha`.
    """

    scale: float
    alpha: float
    tau: float

    def __call__(self, out: torch.Tensor, options: Options) -> torch.Tensor:
        """Return attention's result [B, T, D], guided where the batch has both sides; text tokens stay as they are.

        In a network of joint attention both sides go on with the image tokens of the guided one.
        """
        sides = options.get("cond_or_uncond") or ()
        if POSITIVE not in sides or NEGATIVE not in sides:
            return out
        span = options.get("img_slice")
        first, end = (0, out.shape[1]) if span is None else (int(span[0]), int(span[1]))
        parts = list(out.chunk(len(sides)))
        index, opposite = sides.index(POSITIVE), sides.index(NEGATIVE)
        guided = self._guided(parts[index][:, first:end], parts[opposite][:, first:end])
        for place in (index,) if span is None else (index, opposite):
            parts[place] = torch.cat([parts[place][:, :first], guided, parts[place][:, end:]], dim=1)
        return torch.cat(parts)

    def _guided(self, positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
        moved = positive * self.scale - negative * (self.scale - 1.0)
        before, after = (
            torch.norm(item, p=1, dim=-1, keepdim=True).clamp_min(LEAST_NORM) for item in (positive, moved)
        )
        ratio: torch.Tensor = after / before
        limited: torch.Tensor = moved * (ratio.clamp(max=self.tau) / ratio)
        return limited * self.alpha + positive * (1.0 - self.alpha)
