"""Boxes around the faces of poses, in pixels."""

from __future__ import annotations

import math

import numpy as np

from darkroom.engine.images.pose_drawing import Points

Box = dict[str, int]


def face_box(face: Points, sides: tuple[int, int], scale: float, *, is_square: bool) -> Box | None:
    """Return the box of a face's points [N, 3] whose area is `scale` times theirs, None for points of no area.

    It grows three times as far up as down, keeps the ratio of its sides, and stays within the image's `sides` (height,
    width). A square one has the longer side of the box.
    """
    height, width = sides
    size = np.array([width, height], dtype=np.float32)
    points = (face[:, :2] / size).astype(np.float64) * size
    (left, top), (right, bottom) = points.min(axis=0), points.max(axis=0)
    across, down = right - left, bottom - top
    if across <= 0 or down <= 0:
        return None
    area = across * down * scale
    wider, higher = (math.sqrt(area * across / down) - across) / 2, (math.sqrt(area * down / across) - down) / 4
    x1, x2 = int(max(left - wider, 0)), int(min(right + wider, width))
    y1, y2 = int(max(top - 3 * higher, 0)), int(min(bottom + higher, height))
    if x2 <= x1 or y2 <= y1:
        return None
    if is_square and x2 - x1 != y2 - y1:
        side = max(x2 - x1, y2 - y1)
        (x1, x2), (y1, y2) = (_centred(*ends, side, most) for ends, most in (((x1, x2), width), ((y1, y2), height)))
    return {"x": x1, "y": y1, "width": x2 - x1, "height": y2 - y1}


def _centred(start: int, end: int, length: int, most: int) -> tuple[int, int]:
    """Return a range of that length around the middle of another, moved and cut to stay within 0 and `most`."""
    first = max(0, (start + end) // 2 - length // 2)
    last = min(most, first + length)
    return max(0, last - length), last
