"""Depth as images: near is white. `B` images, `H W` pixels."""

from __future__ import annotations

import torch

SKY = 0.3  # probability from which a pixel is of the sky
LEAST_SPAN = 1e-6
LEAST_PIXELS = 10  # of the sky and of the rest, below which depth in the sky is kept
FAR, NEAR = 0.99, 0.01  # quantiles


def percentile_depth(depth: torch.Tensor, sky: torch.Tensor | None) -> torch.Tensor:
    """Return 1 for near and 0 for far pixels of [H, W], between percentiles of what is not sky. The sky is 0."""
    is_sky = torch.zeros_like(depth, dtype=torch.bool) if sky is None else sky >= SKY
    ground = depth if bool(is_sky.all()) else depth[~is_sky]
    near, far = (quantile(ground, share) for share in (NEAR, FAR))
    scaled = 1 - ((depth - near) / max(far - near, LEAST_SPAN)).clamp(0, 1)
    return torch.where(is_sky, 0.0, scaled)


def spanning_depth(depth: torch.Tensor) -> torch.Tensor:
    """Return 1 for the nearest and 0 for the farthest pixel of each of [B, H, W]."""
    near, far = depth.amin((-2, -1), keepdim=True), depth.amax((-2, -1), keepdim=True)
    return 1 - ((depth - near) / (far - near).clamp(min=LEAST_SPAN)).clamp(0, 1)


def with_far_sky(depth: torch.Tensor, sky: torch.Tensor) -> torch.Tensor:
    """Return depth [H, W] whose sky is as far as the farthest hundredth of the rest; unchanged where either is tiny."""
    is_sky = sky >= SKY
    num_sky = int(is_sky.sum())
    if num_sky <= LEAST_PIXELS or is_sky.numel() - num_sky <= LEAST_PIXELS:
        return depth
    return torch.where(is_sky, quantile(depth[~is_sky], FAR), depth)


def quantile(values: torch.Tensor, share: float) -> float:
    """Return a quantile of values of any number, interpolated between the two nearest."""
    ordered = values.flatten().sort().values
    position = share * (len(ordered) - 1)
    below = int(position)
    first, second = (float(ordered[min(index, len(ordered) - 1)]) for index in (below, below + 1))
    return first + (second - first) * (position - below)


def scaled_confidence(confidence: torch.Tensor) -> torch.Tensor:
    """Return confidence [B, H, W] scaled to 0..1 in each image; 1 where all of an image is the same."""
    least, most = confidence.amin((-2, -1), keepdim=True), confidence.amax((-2, -1), keepdim=True)
    scaled = (confidence - least) / (most - least)
    return torch.where(most > least, scaled, 1.0)
