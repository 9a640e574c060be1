"""Canny's edge detector.

J. Canny, "A Computational Approach to Edge Detection", IEEE PAMI 8(6), 1986: blur, gradient, thinning along the
gradient, two thresholds joined by hysteresis. Constants are those of kornia, whose images ComfyUI shows.

`B` batch, `C` channels, `H W` pixels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from darkroom.engine.images.filters import LUMA, filtered

BLUR_RADIUS_PX, BLUR_SIGMA_PX = 2, 1.0
EPSILON = 1e-6  # under the root of the magnitude

# Steps (down, right) of the eight neighbours, a gradient's direction in units of 45 degrees being the index.
NEIGHBOURS = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))


def canny(image: torch.Tensor, low_threshold: float, high_threshold: float) -> torch.Tensor:
    """Detect the edges of [B, C, H, W] (C of 1, or RGB first), as 0 or 1: [B, 1, H, W].

    A pixel is an edge when its gradient exceeds `high_threshold`, or exceeds `low_threshold` and touches an edge.
    Raises ValueError when the thresholds are the wrong way round.
    """
    if low_threshold > high_threshold:
        raise ValueError(f"low_threshold {low_threshold} is above high_threshold {high_threshold}")
    across, down = _gradient(_blurred(_grey(image)))
    magnitude = torch.sqrt(across * across + down * down + EPSILON)
    magnitude = magnitude * _is_ridge(magnitude, torch.atan2(down, across))
    return _hysteresis(magnitude > low_threshold, magnitude > high_threshold).to(image.dtype)


def _grey(image: torch.Tensor) -> torch.Tensor:
    if image.shape[1] < 3:
        return image[:, :1]
    weights = image.new_tensor(LUMA).reshape(1, 3, 1, 1)
    return (image[:, :3] * weights).sum(dim=1, keepdim=True)


def _blurred(grey: torch.Tensor) -> torch.Tensor:
    offsets = torch.arange(-BLUR_RADIUS_PX, BLUR_RADIUS_PX + 1, device=grey.device, dtype=grey.dtype)
    weights = torch.exp(-(offsets**2) / (2 * BLUR_SIGMA_PX**2))
    weights = weights / weights.sum()
    return filtered(grey, weights[:, None] * weights[None, :])


def _gradient(grey: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute Sobel's derivatives to the right and downwards, the border pixels repeated."""
    sobel = grey.new_tensor([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    padded = F.pad(grey, (1, 1, 1, 1), "replicate")
    across, down = F.conv2d(padded, torch.stack((sobel, sobel.T)).unsqueeze(1)).chunk(2, dim=1)
    return across, down


def _is_ridge(magnitude: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Return True where the magnitude exceeds both neighbours along the gradient; outside of the image it is 0."""
    height, width = magnitude.shape[-2:]
    padded = F.pad(magnitude, (1, 1, 1, 1))
    around = [padded[..., 1 + y : 1 + y + height, 1 + x : 1 + x + width] for y, x in NEIGHBOURS]
    excess = magnitude - torch.cat(around, dim=1)  # [B, 8, H, W]
    direction = torch.round(angle / (torch.pi / 4)).long()
    ahead, behind = excess.gather(1, direction % 8), excess.gather(1, (direction + 4) % 8)
    return torch.minimum(ahead, behind) > 0


def _hysteresis(weak: torch.Tensor, strong: torch.Tensor) -> torch.Tensor:
    """Return `strong` and the parts of `weak` that are connected with it through `weak` (8 neighbours)."""
    edges, grown = torch.zeros_like(strong), strong
    while not torch.equal(edges, grown):
        edges = grown
        grown = edges | (weak & (F.max_pool2d(edges.float(), 3, stride=1, padding=1) > 0))
    return edges
