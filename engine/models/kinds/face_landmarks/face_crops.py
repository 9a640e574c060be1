"""Parts of an image that MediaPipe's networks read: the square around it, and rectangles of it that are turned.

`H W` pixels, `s` the side of what a network reads.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from darkroom.engine.models.kinds.face_landmarks.face_boxes import FaceRectangle


def square_around(image: torch.Tensor, side: int) -> torch.Tensor:
    """Return the square with the middle of an image [3, H, W], 0..255, as [3, s, s] of -1..1, black around it."""
    height, width = image.shape[-2:]
    longest = float(max(height, width))
    rectangle = FaceRectangle(width / 2, height / 2, longest, longest, 0.0)
    return _sampled(image, rectangle, side, "zeros") / 127.5 - 1.0


def cut_out(image: torch.Tensor, rectangle: FaceRectangle, side: int) -> torch.Tensor:
    """Return a rectangle of an image [3, H, W], 0..1, as [3, s, s]; outside of it are its borders' pixels."""
    return _sampled(image, rectangle, side, "border")


def placed(landmarks: torch.Tensor, rectangle: FaceRectangle, side: int) -> torch.Tensor:
    """Return the places [N, 2] in an image, in pixels, of landmarks [N, 3] in a rectangle of it of `side` pixels."""
    u, v = landmarks[:, 0] - side / 2, landmarks[:, 1] - side / 2
    return torch.stack(_turned(u, v, rectangle, side), dim=-1)


def _sampled(image: torch.Tensor, rectangle: FaceRectangle, side: int, outside: str) -> torch.Tensor:
    steps = torch.arange(side, dtype=image.dtype, device=image.device) - side / 2
    v, u = torch.meshgrid(steps, steps, indexing="ij")
    x, y = _turned(u, v, rectangle, side)
    height, width = image.shape[-2:]
    grid = torch.stack(((2 * x + 1) / width - 1, (2 * y + 1) / height - 1), dim=-1)[None]  # [1, s, s, 2]
    return functional.grid_sample(image[None], grid, mode="bilinear", padding_mode=outside, align_corners=False)[0]


def _turned(u: torch.Tensor, v: torch.Tensor, rectangle: FaceRectangle, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x and y in an image of cells `u` right of and `v` below the middle of a rectangle of `side` cells."""
    cos, sin = math.cos(rectangle.angle), math.sin(rectangle.angle)
    across, down = rectangle.width / side, rectangle.height / side
    return rectangle.x + u * across * cos - v * down * sin, rectangle.y + u * across * sin + v * down * cos
