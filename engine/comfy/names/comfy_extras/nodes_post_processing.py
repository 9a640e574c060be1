"""`comfy_extras.nodes_post_processing`: kernels of image filters."""

from __future__ import annotations

import torch

from darkroom.engine.images import filters


def gaussian_kernel(
    kernel_size: int, sigma: float, device: torch.device | None = None, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return a kernel [kernel_size, kernel_size], sum 1; `sigma` is in units of half its side."""
    return filters.square_kernel(kernel_size, sigma, device).to(dtype)
