"""CIE L*a*b* of sRGB images, and back: D65, observer of 2 degrees, with the rounded constants of scikit-image.

`C` channels first: images are float32 `[3, N]` or `[3, H, W]`, sRGB 0..1; L* is 0..100.
"""

from __future__ import annotations

import torch

from darkroom.engine.images.transfer_curves import linear_to_srgb, srgb_to_linear

RGB_TO_XYZ = ((0.412453, 0.357580, 0.180423), (0.212671, 0.715160, 0.072169), (0.019334, 0.119193, 0.950227))
WHITE = (0.95047, 1.0, 1.08883)
LINEAR_BELOW, LINEAR_SLOPE, LINEAR_OFFSET = 0.008856, 7.787, 4.0 / 29.0
LINEAR_BELOW_ROOT = 0.2068966


def rgb_to_lab(image: torch.Tensor) -> torch.Tensor:
    """Convert sRGB [3, ...] to L*a*b*."""
    matrix, white = _constants(image)
    xyz = (matrix @ srgb_to_linear(image).flatten(1)) / white
    root = xyz.clamp(min=LINEAR_BELOW) ** (1 / 3)
    x, y, z = torch.where(xyz > LINEAR_BELOW, root, LINEAR_SLOPE * xyz + LINEAR_OFFSET)
    return torch.stack((116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z))).view(image.shape)


def lab_to_rgb(image: torch.Tensor) -> torch.Tensor:
    """Convert L*a*b* [3, ...] to sRGB, clamped to 0..1."""
    matrix, white = _constants(image)
    lightness, a, b = image.flatten(1)
    y = (lightness + 16.0) / 116.0
    roots = torch.stack((a / 500.0 + y, y, (y - b / 200.0).clamp(min=0.0)))
    xyz = torch.where(roots > LINEAR_BELOW_ROOT, roots**3, (roots - LINEAR_OFFSET) / LINEAR_SLOPE) * white
    return linear_to_srgb(torch.linalg.inv(matrix) @ xyz).clamp(0.0, 1.0).view(image.shape)


def _constants(like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return like.new_tensor(RGB_TO_XYZ), like.new_tensor(WHITE)[:, None]
