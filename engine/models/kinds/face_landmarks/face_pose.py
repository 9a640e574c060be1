"""The pose of a face: the matrix that puts MediaPipe's usual face where the landmarks are, seen by a camera.

Weighted orthogonal Procrustes analysis (Schönemann 1966), with the scale found in two passes, as in MediaPipe's face
geometry. `K` points; all is float64.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from darkroom.engine.models.kinds.face_landmarks.face_template import FaceTemplate

ANGLE_OF_VIEW = math.radians(63.0)  # from top to bottom
NEAR = 1.0  # distance of the plane that the camera sees
LEAST_SCALE, LEAST_SPREAD = 1e-6, 1e-12
Floats = NDArray[np.float64]


def face_pose(
    landmarks: NDArray[np.float32], places: NDArray[np.float32], sides: tuple[int, int], template: FaceTemplate
) -> NDArray[np.float32]:
    """Return the matrix [4, 4] of a face with landmarks [N, 3] that lie at places [N, 2] of an image, in pixels.

    `sides` are height and width of the image. Raises ValueError for a usual face whose points are all in one place.
    """
    height, width = sides
    depth = landmarks[:, 2].astype(np.float64) * _depth_scale(landmarks, places, width)
    top = NEAR * math.tan(ANGLE_OF_VIEW / 2)
    right = top * width / height
    shares = places.astype(np.float64) / (width, height)
    seen = np.column_stack(((2 * shares[:, 0] - 1) * right, (1 - 2 * shares[:, 1]) * top, 2 * depth * right))
    points, usual = seen[template.indices], template.vertices[template.indices]
    mirrored = points * (1, 1, -1)
    first = _scale(_similarity(usual, mirrored, template.weights))
    second = _scale(_similarity(usual, _unprojected(points, first), template.weights))
    return _similarity(usual, _unprojected(points, first * second), template.weights).astype(np.float32)


def _depth_scale(landmarks: NDArray[np.float32], places: NDArray[np.float32], width: int) -> float:
    """Return the share of the image's width that a pixel of what the network reads is."""
    x_y_1 = np.column_stack((landmarks[:, :2].astype(np.float64), np.ones(len(landmarks))))
    found = np.linalg.lstsq(x_y_1, places.astype(np.float64), rcond=None)[0]
    scale = float(np.linalg.norm(found[0]))
    return (scale if scale > LEAST_SCALE else 1.0) / width


def _unprojected(points: Floats, scale: float) -> Floats:
    """Return points [K, 3] of the camera's plane as points in space, in front of the camera."""
    depth = (points[:, 2] - points[:, 2].mean() + NEAR) / scale
    return np.column_stack((points[:, :2] * (depth / NEAR)[:, None], -depth))


def _similarity(source: Floats, target: Floats, weights: Floats) -> Floats:
    """Return the matrix [4, 4] that turns, scales and moves points [K, 3] to others, by least weighted squares."""
    shares = weights / weights.sum()
    middle = shares @ source
    around = source - middle
    turned, _, turns = np.linalg.svd((target * shares[:, None]).T @ around)
    is_mirrored = np.linalg.det(turned) * np.linalg.det(turns) < 0
    rotation = turned @ np.diag((1.0, 1.0, -1.0 if is_mirrored else 1.0)) @ turns
    spread = float((shares @ (around * source)).sum()) * float(weights.sum())
    if spread < LEAST_SPREAD:
        raise ValueError("face_detection_model: all points of its usual face are in one place")
    scale = float((shares @ (around @ rotation.T * target)).sum()) * float(weights.sum()) / spread
    matrix = np.eye(4)
    matrix[:3, :3] = scale * rotation
    matrix[:3, 3] = shares @ (target - source @ matrix[:3, :3].T)
    return matrix


def _scale(matrix: Floats) -> float:
    return float(np.linalg.norm(matrix[:3, 0]))
