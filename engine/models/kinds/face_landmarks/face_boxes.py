"""Boxes of faces of what a detector computes for its anchors, and the squares in which their landmarks are looked for.

`N` faces. A face is a row of 17: left, top, right, bottom, x and y of six points, and its score; places are shares of
what the detector reads, or of the image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ROW = 17
SCORE = 16
MOST_LOGIT = 100.0
MOST_OVERLAP = 0.5  # of two boxes that are different faces', of their union
RIGHT_EYE, LEFT_EYE = 4, 6  # index of each one's x
MARGIN = 1.5  # of the landmarks' rectangle, times the box
Floats = NDArray[np.float32]


class FaceRectangle(NamedTuple):
    """Middle and sides in pixels, and angle in radians."""

    x: float
    y: float
    width: float
    height: float
    angle: float


def anchor_centres(grids: Sequence[tuple[int, int]]) -> Floats:
    """Return the middles [A, 2] of the anchors of all levels, x and y."""
    levels = []
    for cells, anchors in grids:
        places = (np.arange(cells, dtype=np.float32) + np.float32(0.5)) / np.float32(cells)
        y, x = np.meshgrid(places, places, indexing="ij")
        levels.append(np.repeat(np.stack((x, y), axis=-1).reshape(-1, 2), anchors, axis=0))
    return np.concatenate(levels)


def detected_faces(offsets: Floats, logits: Floats, centres: Floats, side_px: int, least_score: float) -> Floats:
    """Return the faces [N, 17] of an image, the surest first, of offsets [A, 16] and logits [A]."""
    scores = 1 / (1 + np.exp(-np.clip(logits, -MOST_LOGIT, MOST_LOGIT)))
    is_kept = scores >= least_score
    values, around = offsets[is_kept] / np.float32(side_px), centres[is_kept]
    middles, sides = values[:, :2] + around, values[:, 2:4]
    rows = np.empty((len(values), ROW), dtype=np.float32)
    rows[:, :2], rows[:, 2:4] = middles - sides / 2, middles + sides / 2
    rows[:, 4:SCORE] = values[:, 4:] + np.tile(around, (1, (SCORE - 4) // 2))
    rows[:, SCORE] = scores[is_kept]
    return _merged(rows[np.argsort(-rows[:, SCORE])])


def _merged(rows: Floats) -> Floats:
    """Return a row for each face: boxes that overlap the surest one's are averaged with it, by their scores."""
    merged = []
    while len(rows):
        overlaps = _overlaps(rows)
        overlaps[0] = True
        cluster, rows = rows[overlaps], rows[~overlaps]
        face = cluster[0].copy()
        weights = cluster[:, SCORE:]
        if weights.sum() > 0:
            face[:SCORE] = (cluster[:, :SCORE] * weights).sum(axis=0) / weights.sum()
        merged.append(face)
    return np.stack(merged) if merged else np.empty((0, ROW), dtype=np.float32)


def _overlaps(rows: Floats) -> NDArray[np.bool_]:
    """Return True for boxes that cover more than half of what they and the first one cover together."""
    first = rows[0]
    sides = np.minimum(rows[:, 2:4], first[2:4]) - np.maximum(rows[:, :2], first[:2])
    common = np.clip(sides, 0, None).prod(axis=1)
    areas = np.clip(rows[:, 2:4] - rows[:, :2], 0, None).prod(axis=1)
    union = areas + areas[0] - common
    overlaps: NDArray[np.bool_] = (union > 0) & (common > MOST_OVERLAP * union)
    return overlaps


def in_image(faces: Floats, width: int, height: int) -> Floats:
    """Return faces in shares of an image of `width` x `height` pixels, of those in its square."""
    side = max(width, height)
    placed = faces.copy()
    for start, pixels in ((0, width), (1, height)):
        placed[:, start:SCORE:2] = (pixels / 2 - side / 2 + side * faces[:, start:SCORE:2]) / pixels
    return placed


def rectangle_of(face: Floats, width: int, height: int) -> FaceRectangle:
    """Return the rectangle of a face in an image of `width` x `height` pixels, turned so that its eyes are level."""
    left, top, right, bottom = (float(value) for value in face[:4])
    right_x, right_y = float(face[RIGHT_EYE]) * width, float(face[RIGHT_EYE + 1]) * height
    left_x, left_y = float(face[LEFT_EYE]) * width, float(face[LEFT_EYE + 1]) * height
    return FaceRectangle(
        (left + right) / 2 * width,
        (top + bottom) / 2 * height,
        (right - left) * width * MARGIN,
        (bottom - top) * height * MARGIN,
        -math.atan2(right_y - left_y, left_x - right_x),
    )
