"""Grey-scale morphology: each pixel becomes the largest or smallest value around it, and what is made of the two.

Serra, "Image Analysis and Mathematical Morphology", 1982. `B` batch, `C` channels, `H W` pixels; what lies outside of
the image never counts. The structuring element is a full square of `size` pixels a side, or a cross of 3.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

OPERATIONS = ("erode", "dilate", "open", "close", "gradient", "bottom_hat", "top_hat")


def dilate(samples: torch.Tensor, size: int) -> torch.Tensor:
    """Return the largest of the square around each pixel of [B, C, H, W].

    A square of even size has its origin at `size // 2` and is mirrored, as Minkowski's sum wants it: pixels look one
    farther down and right than up and left. Erosion is not mirrored, so that opening and closing shift nothing.
    """
    return _largest(samples, before=size - size // 2 - 1, after=size // 2)


def erode(samples: torch.Tensor, size: int) -> torch.Tensor:
    """Return the smallest of the square around each pixel of [B, C, H, W]; see `dilate` for even sizes."""
    return -_largest(-samples, before=size // 2, after=size - size // 2 - 1)


def _largest(samples: torch.Tensor, before: int, after: int) -> torch.Tensor:
    """Return the largest of `before` pixels up and left to `after` pixels down and right, side by side."""
    padded = F.pad(samples, (before, after, before, after), value=-torch.inf)
    size = before + 1 + after
    return F.max_pool2d(F.max_pool2d(padded, (1, size), stride=1), (size, 1), stride=1)


def dilate_cross(samples: torch.Tensor) -> torch.Tensor:
    """Return the largest of each pixel of [B, C, H, W] and its four neighbours."""
    across = F.max_pool2d(samples, (1, 3), stride=1, padding=(0, 1))
    down = F.max_pool2d(samples, (3, 1), stride=1, padding=(1, 0))
    return torch.maximum(across, down)


def morphology(samples: torch.Tensor, operation: str, size: int) -> torch.Tensor:
    """Apply one of `OPERATIONS` to [B, C, H, W]; raises ValueError for another name."""
    if operation == "erode":
        return erode(samples, size)
    if operation == "dilate":
        return dilate(samples, size)
    if operation == "open":
        return dilate(erode(samples, size), size)
    if operation == "close":
        return erode(dilate(samples, size), size)
    if operation == "gradient":
        return dilate(samples, size) - erode(samples, size)
    if operation == "top_hat":
        return samples - dilate(erode(samples, size), size)
    if operation == "bottom_hat":
        return erode(dilate(samples, size), size) - samples
    raise ValueError(f"operation {operation!r}; expected one of {', '.join(OPERATIONS)}")
