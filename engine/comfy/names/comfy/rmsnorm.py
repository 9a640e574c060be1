"""`comfy.rmsnorm`: normalisation by the root of the mean square."""

from __future__ import annotations

import torch
from torch.nn import RMSNorm, functional

__all__ = ["RMSNorm", "rms_norm"]


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None = None, eps: float = 1e-6) -> torch.Tensor:
    """Normalise the last dimensions of `x`, those of `weight`, or the last one alone without a weight."""
    if weight is None:
        return functional.rms_norm(x, (x.shape[-1],), eps=eps)
    return functional.rms_norm(x, weight.shape, weight.to(x), eps)
