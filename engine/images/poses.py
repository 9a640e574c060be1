"""POSE_KEYPOINT: poses of people in OpenPose's format, a dictionary for each image.

Each has `canvas_width`, `canvas_height` and `people`, whose lists hold x, y and score of one point after the other, in
pixels. `N` points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

PARTS = {
    "pose_keypoints_2d": 18, "foot_keypoints_2d": 6, "face_keypoints_2d": 70, "hand_right_keypoints_2d": 21,
    "hand_left_keypoints_2d": 21,
}  # fmt: skip
"""Points of each list of a person."""

OPTIONAL = ("foot_keypoints_2d",)
MAX_SIDE_PX = 16384

PoseKeypoints = Sequence[Mapping[str, Any]]


class Pose(NamedTuple):
    """Points [N, 3] of each part of a person, x, y and score, float32."""

    body: NDArray[np.float32]
    feet: NDArray[np.float32]
    face: NDArray[np.float32]
    right_hand: NDArray[np.float32]
    left_hand: NDArray[np.float32]


def canvas_of(frame: Mapping[str, Any]) -> tuple[int, int]:
    """Return height and width of an image's canvas in pixels. Raises ValueError for others than 1 to 16384."""
    sides = int(frame["canvas_height"]), int(frame["canvas_width"])
    if not all(1 <= side <= MAX_SIDE_PX for side in sides):
        raise ValueError(
            f"keypoints: got a canvas of {sides[1]}x{sides[0]} px, expected sides of 1 to {MAX_SIDE_PX} px"
        )
    return sides


def poses_of(frame: Mapping[str, Any]) -> Iterator[Pose]:
    """Yield the people of an image. Raises ValueError for lists of another length."""
    for person in frame["people"]:
        yield Pose(*(_points(person, name, count) for name, count in PARTS.items()))


def _points(person: Mapping[str, Any], name: str, count: int) -> NDArray[np.float32]:
    values = person.get(name)
    if not values and name in OPTIONAL:
        return np.zeros((count, 3), dtype=np.float32)
    if values is None or len(values) != 3 * count:
        found = "nothing" if values is None else f"{len(values)} numbers"
        raise ValueError(f"keypoints: {name}: got {found}, expected {3 * count}, three for each point")
    return np.nan_to_num(np.array(values, dtype=np.float32).reshape(count, 3), posinf=0, neginf=0)
