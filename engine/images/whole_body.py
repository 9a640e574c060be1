"""Poses of the 133 points of COCO-WholeBody (Jin et al. 2020, arXiv 2007.11858), in OpenPose's format.

`K` points, of which 17 are the body's, 6 the feet's, 68 the face's and 21 each hand's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEFT_SHOULDER, RIGHT_SHOULDER = 5, 6
NECK = 133  # in points that a neck was added to
LEAST_SHOULDER_SCORE = 0.3
BODY = (0, NECK, 6, 8, 10, 5, 7, 9, 12, 14, 16, 11, 13, 15, 2, 1, 4, 3)
"""Index of each point of OpenPose's body."""

EYES = (2, 1)  # right and left; the face's list ends with them
PARTS = {
    "pose_keypoints_2d": BODY,
    "foot_keypoints_2d": tuple(range(17, 23)),
    "face_keypoints_2d": (*range(23, 91), *EYES),
    "hand_right_keypoints_2d": tuple(range(91, 112)),
    "hand_left_keypoints_2d": tuple(range(112, 133)),
}
Floats = NDArray[np.float32]
People = Sequence[tuple[Floats, Floats]]
"""Places [K, 2] in pixels and scores [K] of each person."""


def pose_frame(people: People, height: int, width: int) -> dict[str, Any]:
    """Return the poses of an image of `height` x `width` pixels."""
    return {"canvas_width": width, "canvas_height": height, "people": [_person(*person) for person in people]}


def _person(places: Floats, scores: Floats) -> dict[str, list[float]]:
    points = np.concatenate((places, scores[:, None]), axis=1)
    shoulders = points[[LEFT_SHOULDER, RIGHT_SHOULDER]]
    neck = np.append(shoulders[:, :2].sum(axis=0) / 2, _neck_score(shoulders[:, 2]))
    points = np.concatenate((points, neck[None])).astype(np.float32)
    return {name: points[list(indices)].flatten().tolist() for name, indices in PARTS.items()}


def _neck_score(shoulders: Floats) -> float:
    return float(shoulders.min()) if (shoulders > LEAST_SHOULDER_SCORE).all() else 0.0
