"""Points of COCO-WholeBody in OpenPose's lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from darkroom.engine.images.poses import PARTS, poses_of
from darkroom.engine.images.whole_body import pose_frame

NUM_POINTS = 133


def person(shoulder_score: float = 0.9) -> tuple[Any, Any]:
    """Point n is at (n, 1000 + n)."""
    places = np.stack((np.arange(NUM_POINTS), 1000 + np.arange(NUM_POINTS)), axis=1).astype(np.float32)
    scores = np.full(NUM_POINTS, 0.5, dtype=np.float32)
    scores[6] = shoulder_score
    return places, scores


def test_the_lists_are_openpose_s_and_hold_every_point() -> None:
    frame = pose_frame([person()], 480, 640)
    (found,) = frame["people"]
    assert (frame["canvas_width"], frame["canvas_height"]) == (640, 480)
    assert {name: len(values) // 3 for name, values in found.items()} == PARTS
    (pose,) = poses_of(frame)
    assert pose.body[:, 0].tolist() == [0, 5.5, 6, 8, 10, 5, 7, 9, 12, 14, 16, 11, 13, 15, 2, 1, 4, 3]
    assert pose.feet[:, 0].tolist() == list(range(17, 23))
    assert pose.face[[0, 67, 68, 69], 0].tolist() == [23, 90, 2, 1]
    assert (pose.right_hand[0, 0], pose.left_hand[-1, 0]) == (91, 132)


@pytest.mark.parametrize(("shoulder_score", "neck_score"), [(0.9, 0.5), (0.4, 0.4), (0.3, 0.0)])
def test_a_neck_is_as_sure_as_the_less_sure_shoulder_if_both_are_there(
    shoulder_score: float, neck_score: float
) -> None:
    (pose,) = poses_of(pose_frame([person(shoulder_score)], 480, 640))
    assert pose.body[1].tolist() == pytest.approx([5.5, 1005.5, neck_score])
