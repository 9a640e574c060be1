"""Depth as images: near is white. `B` images, `H W` pixels."""

from __future__ import annotations

import torch

SKY = 0.3  # probability from which a pixel is of the sky
LEAST_SPAN = 1e-6
LEAST_PIXELS = 10  # of the sky and of the rest, below which depth in the sky is kept
FAR, NEAR = 0.99, 0.01  # quantiles
OUTER = 0.001  # likewise, of nearness


def percentile_depth(depth: torch.Tensor, sky: torch.Tensor | None) -> torch.Tensor:
    """Return 1 for near and 0 for far pixels of [H, W], between percentiles of what is not sky. The sky is 0."""
    is_sky = torch.zeros_like(depth, dtype=torch.bool) if sky is None else sky >= SKY
    ground = depth if bool(is_sky.all()) else depth[~is_sky]
    near, far = quantiles(ground, NEAR, FAR)
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
    (far,) = quantiles(depth[~is_sky], FAR)
    return torch.where(is_sky, far, depth)


def quantiles(values: torch.Tensor, *shares: float) -> list[float]:
    """Return quantiles of values of any number, each interpolated between the two nearest."""
    ordered = values.flatten().sort().values
    found = []
    for share in shares:
        position = share * (len(ordered) - 1)
        below = int(position)
        first, second = (float(ordered[min(index, len(ordered) - 1)]) for index in (below, below + 1))
        found.append(first + (second - first) * (position - below))
    return found


def percentile_nearness(depth: torch.Tensor) -> torch.Tensor:
    """Return the inverse of depth [H, W], scaled to 0..1 between its outer thousandths; 0 where there is none."""
    is_valid = depth.isfinite() & (depth > 0)
    if not bool(is_valid.any()):
        return torch.zeros_like(depth)
    nearness = torch.where(is_valid, 1 / depth.clamp(min=LEAST_SPAN), 0.0)
    least, most = quantiles(nearness[is_valid], OUTER, 1 - OUTER)
    return torch.where(is_valid, ((nearness - least) / max(most - least, LEAST_SPAN)).clamp(0, 1), 0.0)


def normals_of_points(points: torch.Tensor) -> torch.Tensor:
    """Return the normals towards the camera of points [H, W, 3] that are right, down and ahead; 0 where there are none.

    Those at the border of the image have a side of length 0, and no normal.
    """
    is_valid = points.isfinite().all(dim=-1, keepdim=True)
    known = torch.where(is_valid, points, 0.0)
    across, down = torch.zeros_like(known), torch.zeros_like(known)
    across[:, 1:-1] = known[:, 2:] - known[:, :-2]
    down[1:-1] = known[2:] - known[:-2]
    normals = torch.nn.functional.normalize(torch.linalg.cross(down, across), dim=-1)
    return torch.where(is_valid, normals, 0.0)


def scaled_confidence(confidence: torch.Tensor) -> torch.Tensor:
    """Return confidence [B, H, W] scaled to 0..1 in each image; 1 where all of an image is the same."""
    least, most = confidence.amin((-2, -1), keepdim=True), confidence.amax((-2, -1), keepdim=True)
    scaled = (confidence - least) / (most - least)
    return torch.where(most > least, scaled, 1.0)
