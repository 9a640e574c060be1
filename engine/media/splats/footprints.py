"""Gaussians as a camera sees them: the pixels around each, and its weight in them.

`N` Gaussians, `M` pixels of a window. The weight is the peak of the Gaussian in space along the ray of the pixel:
F. Hahlbohm et al., "Efficient perspective-correct 3D Gaussian splatting using hybrid transparency", 2025.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from darkroom.engine.media.rotations import matrices_of
from darkroom.engine.media.splats.camera import Camera, quantile
from darkroom.engine.media.splats.splat import Splat

NEAREST = 1e-2  # what is nearer to the camera is not shown
ROUNDING = 1e-3  # of the mean variance, added so that flat Gaussians have an inverse
LEAST, LEAST_VARIANCE, MOST_OPAQUE = 1e-12, 1e-8, 0.999
WINDOWS_PX = (16, 64, 256)  # half sides, up to the largest one needed
DEVIATIONS, WINDOW_DEVIATIONS = 3.0, 4.0
NEARLY_ALL = 0.995  # share of Gaussians of which the radius decides the largest window


@dataclass(frozen=True, slots=True)
class Footprints:
    """The Gaussians in front of a camera."""

    means: torch.Tensor  # [N, 3], in the camera's directions
    inverse: torch.Tensor  # [N, 3, 3], of the covariances
    centers: torch.Tensor  # [N, 2], pixels, x first
    normals: torch.Tensor  # [N, 3], along the thinnest axis, towards the camera
    opacities: torch.Tensor  # [N]
    colors: torch.Tensor  # [N, 3]
    window: torch.Tensor  # [N], index into `windows`
    windows: tuple[int, ...]  # half sides in pixels

    def weights(
        self, part: torch.Tensor, offsets: torch.Tensor, camera: Camera, width: int, height: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the pixels [n, M] of a part [n] at offsets [M, 2] from their middles, and their opacities [n, M]."""
        pixels = self.centers[part].round()[:, None] + offsets
        x, y = pixels.unbind(-1)
        is_shown = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        middle = torch.tensor([width / 2, height / 2])
        squared = self._squared(part, (pixels - middle) / scale_of(camera), camera)
        opacity = self.opacities[part, None] * torch.exp(-0.5 * squared) * is_shown
        index = y.long().clamp(0, height - 1) * width + x.long().clamp(0, width - 1)
        return index, opacity.clamp(0, MOST_OPAQUE)

    def _squared(self, part: torch.Tensor, rays: torch.Tensor, camera: Camera) -> torch.Tensor:
        """Return the least Mahalanobis distances squared [n, M] along rays (x, y, 1), or parallel ones at (x, y).

        Distances are those from the ray through the mean, which loses no digits far from the camera.
        """
        inverse, means = self.inverse[part], self.means[part]
        ahead = torch.cat((rays, torch.ones_like(rays[..., :1])), dim=-1)
        if camera.is_orthographic:
            away, directions = ahead - means[:, None], torch.tensor([0.0, 0.0, 1.0]).expand_as(ahead)
        else:
            away, directions = ahead * means[:, None, 2:] - means[:, None], ahead
        away = torch.cat((away[..., :2], torch.zeros_like(away[..., 2:])), dim=-1)  # along the ray nothing changes
        pulled = torch.einsum("nij,nmj->nmi", inverse, away)
        length = torch.einsum("nmi,nij,nmj->nm", directions, inverse, directions).clamp(min=LEAST)
        return ((away * pulled).sum(-1) - (directions * pulled).sum(-1).square() / length).clamp(min=0)


def footprints_of(splat: Splat, camera: Camera, scale: float, width: int, height: int) -> Footprints:
    """Return the Gaussians of one splat, without a batch, with their deviations times a scale."""
    means = (splat.positions.float() - camera.eye) @ camera.axes.T
    kept = means[:, 2] > NEAREST
    means, deviations = means[kept], splat.scales.float()[kept] * scale
    axes = camera.axes @ matrices_of(splat.rotations.float()[kept])
    covariances = (axes * deviations.square()[:, None]) @ axes.mT
    rounding = covariances.diagonal(dim1=1, dim2=2).mean(1) * ROUNDING
    covariances = covariances + rounding[:, None, None] * torch.eye(3)
    normals = axes[torch.arange(len(axes)), :, deviations.argmin(1)]
    flat, slopes = _projected(means, camera)
    radius = DEVIATIONS * _largest_variance(slopes @ covariances @ slopes.mT).clamp(min=LEAST_VARIANCE).sqrt()
    windows = _windows(radius, width, height)
    wanted = radius * (WINDOW_DEVIATIONS / DEVIATIONS)
    return Footprints(
        means=means,
        inverse=torch.linalg.inv(covariances),
        centers=flat + torch.tensor([width / 2, height / 2]),
        normals=torch.where(normals[:, 2:] > 0, -normals, normals),
        opacities=splat.opacities.float().reshape(-1)[kept],
        colors=splat.colors()[kept],
        window=torch.bucketize(wanted, torch.tensor(windows, dtype=torch.float32)).clamp(max=len(windows) - 1),
        windows=windows,
    )


def scale_of(camera: Camera) -> float:
    """Return the pixels of one unit: at distance 1, for parallel rays at the target."""
    if not camera.is_orthographic:
        return camera.focal_px
    return camera.focal_px / max(float((camera.target - camera.eye).norm()), 1e-6)


def _projected(means: torch.Tensor, camera: Camera) -> tuple[torch.Tensor, torch.Tensor]:
    """Return positions [N, 2] in pixels from the middle of the image, and their derivatives [N, 2, 3]."""
    scale, slopes = scale_of(camera), torch.zeros(len(means), 2, 3)
    if camera.is_orthographic:
        slopes[:, 0, 0] = slopes[:, 1, 1] = scale
        return scale * means[:, :2], slopes
    nearness = 1.0 / means[:, 2:]
    slopes[:, 0, 0] = slopes[:, 1, 1] = scale * nearness[:, 0]
    slopes[:, :, 2] = -scale * means[:, :2] * nearness.square()
    return scale * means[:, :2] * nearness, slopes


def _largest_variance(covariances: torch.Tensor) -> torch.Tensor:
    """Return the larger eigenvalue [N] of matrices [N, 2, 2]."""
    a, b, c = covariances[:, 0, 0], covariances[:, 0, 1], covariances[:, 1, 1]
    return (a + c) / 2 + (((a - c) / 2).square() + b * b).clamp(min=0).sqrt()


def _windows(radius: torch.Tensor, width: int, height: int) -> tuple[int, ...]:
    if not len(radius):
        return WINDOWS_PX[:1]
    needed = max(2, math.ceil(float(quantile(radius, NEARLY_ALL))))
    largest = min(max(24, min(width, height) // 16), needed)
    return (*(side for side in WINDOWS_PX if side < largest), largest)
