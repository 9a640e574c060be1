"""`comfy.float`: rounding to types of fewer bits."""

from __future__ import annotations

import torch

from darkroom.engine.memory.weight_patches import FLOAT8_FORMATS, rounded_by_seed


def stochastic_rounding(value: torch.Tensor, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Return a tensor in another type; to float8 values are rounded at random, by the seed."""
    if dtype not in FLOAT8_FORMATS:
        return value.to(dtype)
    return rounded_by_seed(value.to(torch.float32), dtype, seed)
