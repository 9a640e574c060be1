"""Cameras of views from the rays of their pixels, the other way in which Depth Anything 3 estimates them.

Directions of rays in the world are a homography of those in the camera. It is found by RANSAC (Fischler and Bolles
1981) on the most confident rays, then by least squares, and taken apart into rotation and intrinsics. `N` rays, `K`
hypotheses, `P` points of each.
"""

from __future__ import annotations

import torch

HYPOTHESES, POINTS = 100, 8
SHARE = 0.3  # of the rays, the most confident ones, of which points are drawn
NEAR = 0.2  # distance of a point to its image by a hypothesis that fits
MOST_POINTS, KEPT_SHARE = 8000, 0.95  # of those that fit, in the final fit
LEAST_DEPTH = 1e-4
SEED = 0  # of the points that are drawn, so that the same views have the same cameras


def cameras_of_rays(
    rays: torch.Tensor, confidence: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rotation [3, 3], position [3], focal lengths [2] and centre [2] of one view, float32 on the CPU.

    `rays` [h, w, 6] are directions and origins in the world. Focal lengths are in half sides, centres from 0 to 2.
    """
    height, width, _ = rays.shape
    rays, weights = rays.float().cpu().flatten(0, 1), confidence.float().cpu().flatten()
    position = (rays[:, 3:] * weights[:, None]).sum(0) / weights.sum()
    source, depth = _plane(height, width), rays[:, 2]
    is_ahead = depth.abs() > LEAST_DEPTH
    target = torch.where(is_ahead[:, None], rays[:, :2] / torch.where(is_ahead, depth, 1.0)[:, None], rays[:, :2])
    found = _fitted(source, target, torch.where(is_ahead, weights, 0.0))
    found = -found if torch.linalg.det(found) < 0 else found
    rotation, lower = _orthogonal_lower(found)
    lower = lower / lower[2, 2]
    return rotation, position, 1 / lower.diagonal()[:2], lower[2, :2] + 1


def _plane(height: int, width: int) -> torch.Tensor:
    """Return the middle of each pixel [N, 2] of a plane from -1 to 1."""
    columns, rows = (torch.linspace(1 / size - 1, 1 - 1 / size, size) for size in (width, height))
    return torch.stack((columns.expand(height, width), rows[:, None].expand(height, width)), dim=-1).flatten(0, 1)


def _fitted(source: torch.Tensor, target: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the homography [3, 3] from points [N, 2] to others; the identity where none fits four of them."""
    generator = torch.Generator().manual_seed(SEED)
    num_best = max(POINTS, int(len(source) * SHARE))
    best = weights.argsort(descending=True)[:num_best]
    drawn = torch.stack([torch.randperm(len(best), generator=generator)[:POINTS] for _ in range(HYPOTHESES)])
    chosen = best[drawn]  # [K, P]
    score, fitting = -1.0, torch.zeros(len(source), dtype=torch.bool)
    for guess in _least_squares(source[chosen], target[chosen], weights[chosen]):
        is_near = _distances(guess, source, target) < NEAR
        total = float(weights[is_near].sum())
        if total > score:
            score, fitting = total, is_near
    if int(fitting.sum()) < 4:
        return torch.eye(3)
    source, target, weights = source[fitting], target[fitting], weights[fitting]
    order = weights.argsort(descending=True)
    if len(order) > MOST_POINTS:
        kept = max(int(len(order) * KEPT_SHARE), MOST_POINTS)
        order = order[:kept][torch.randperm(kept, generator=generator)[:MOST_POINTS]]
    return _least_squares(source[None, order], target[None, order], weights[None, order])[0]


def _distances(homography: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    images = source @ homography[:, :2].T + homography[:, 2]
    distances: torch.Tensor = (images[:, :2] / images[:, 2:] - target).norm(dim=-1)
    return distances


def _least_squares(source: torch.Tensor, target: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return homographies [K, 3, 3] from points [K, P, 2] to others by the direct linear transform, weighted."""
    point = torch.cat((source, torch.ones_like(source[..., :1])), dim=-1) * weights.sqrt()[..., None]
    nothing = torch.zeros_like(point)
    right = torch.cat((-point, nothing, point * target[..., :1]), dim=-1)
    down = torch.cat((nothing, -point, point * target[..., 1:]), dim=-1)
    solution = torch.linalg.svd(torch.cat((right, down), dim=1), full_matrices=False).Vh[:, -1]
    made: torch.Tensor = solution.reshape(-1, 3, 3)
    return made / made[:, 2:, 2:]


def _orthogonal_lower(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an orthogonal and a lower triangular matrix, of positive diagonal, whose product is `matrix` [3, 3]."""
    orthogonal, upper = torch.linalg.qr(matrix.flip(1))
    orthogonal, lower = orthogonal.flip(1), upper.flip(0, 1)
    signs = lower.diagonal().sign()
    return orthogonal * signs, lower * signs[:, None]
