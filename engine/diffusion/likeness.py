"""Distance of two latents."""

from __future__ import annotations

import torch


def relative_error(found: torch.Tensor, plain: torch.Tensor) -> float:
    """Return the relative L2 distance of two tensors; 0.0 for equal bits alone, NaN where one is not finite."""
    if torch.equal(found, plain):
        return 0.0
    distance = float((found.double() - plain.double()).norm() / plain.double().norm().clamp_min(1e-30))
    return max(distance, 5e-324)
