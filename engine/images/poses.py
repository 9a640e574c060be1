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
MAX_SHOWN = 100  # characters of a value in an error

PoseKeypoints = Sequence[Mapping[str, Any]]


class Pose(NamedTuple):
    """Points [N, 3] of each part of a person, x, y and score, float32."""

    body: NDArray[np.float32]
    feet: NDArray[np.float32]
    face: NDArray[np.float32]
    right_hand: NDArray[np.float32]
    left_hand: NDArray[np.float32]


def frames_of(keypoints: object) -> PoseKeypoints:
    """Return the poses of each image. Raises ValueError for what is no list of dictionaries."""
    if not isinstance(keypoints, list | tuple) or not all(isinstance(frame, Mapping) for frame in keypoints):
        raise ValueError(f"keypoints: got {type(keypoints).__name__}, expected a list with a dictionary for each image")
    return keypoints


def canvas_of(frame: Mapping[str, Any]) -> tuple[int, int]:
    """Return height and width of an image's canvas in pixels. Raises ValueError for others than 1 to 16384."""
    sides: list[int] = []
    for name in ("canvas_height", "canvas_width"):
        try:
            sides.append(int(frame[name]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"keypoints: {name}: got {_shown(frame.get(name))}, expected a number of pixels"
            ) from error
    height, width = sides
    if not all(1 <= side <= MAX_SIDE_PX for side in sides):
        raise ValueError(f"keypoints: got a canvas of {width}x{height} px, expected sides of 1 to {MAX_SIDE_PX} px")
    return height, width


def poses_of(frame: Mapping[str, Any]) -> Iterator[Pose]:
    """Yield the people of an image. Raises ValueError for other values than lists of numbers, and other lengths."""
    people = frame.get("people")
    if not isinstance(people, list | tuple) or not all(isinstance(person, Mapping) for person in people):
        raise ValueError(f"keypoints: people: got {_shown(people)}, expected a list with a dictionary for each person")
    for person in people:
        yield Pose(*(_points(person, name, count) for name, count in PARTS.items()))


def _points(person: Mapping[str, Any], name: str, count: int) -> NDArray[np.float32]:
    values = person.get(name)
    try:
        points = np.array([] if values is None else values, dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"keypoints: {name}: got {_shown(values)}, expected numbers") from error
    if name in OPTIONAL and not points.size:
        return np.zeros((count, 3), dtype=np.float32)
    if points.shape != (3 * count,):
        found = "nothing" if values is None else f"{points.size} numbers"
        raise ValueError(f"keypoints: {name}: got {found}, expected {3 * count}, three for each point")
    return np.nan_to_num(points.reshape(count, 3), posinf=0, neginf=0)


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)[:MAX_SHOWN]
