"""Poses: drawn to the pixel as ComfyUI 0.33.0 draws them without OpenCV, and the boxes of their faces."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import pytest

from darkroom.engine.images.face_boxes import face_box
from darkroom.engine.images.pose_drawing import PoseStyle, draw_pose, ellipse, fill_circle, fill_polygon, line
from darkroom.engine.images.poses import PARTS, canvas_of, poses_of

HEIGHT, WIDTH = 150, 201
DRAWN = {
    "all": (PoseStyle(feet=True), "709797bdb645e92781cc3051d7ba832f7c929e5e39109650c00e7d09bc9d416a"),
    "thin": (
        PoseStyle(stick_px=1, face_px=1, least_score=0.0),
        "9dff01bc78370743672d2baf19aeacc76f25370e24bed6975b4cc9da24ae4b76",
    ),
    "head": (
        PoseStyle(body=False, hands=False, face=False),
        "78e79e50464b4a8ddd273169e4da87c10306a8d355e02d08200c1a3a359df199",
    ),
    "body": (
        PoseStyle(head=False, face_px=6, least_score=0.6),
        "2f8c9a2ce63f32dc4ca7c6b7c3d8bff265818d83f6d8274a84533701074e55a2",
    ),
}
"""SHA-256 of the pixels that 0.33.0 draws of `frame`, by style."""


def frame() -> dict[str, Any]:
    """Two people whose points wind around two middles; some are beyond the canvas, some uncertain."""
    people = []
    for middle_x, middle_y, reach in ((70, 60, 45), (150, 110, 70)):
        person = {}
        for part, (name, count) in enumerate(PARTS.items()):
            values = []
            for index in range(count):
                angle, away = 2.399 * index + part, reach * math.sqrt((index + 1) / count)
                score = (index * 7 + part) % 11 / 10
                values += [middle_x + away * math.cos(angle), middle_y + away * math.sin(angle), score]
            person[name] = values
        people.append(person)
    return {"canvas_width": WIDTH, "canvas_height": HEIGHT, "people": people}


@pytest.mark.parametrize("name", DRAWN)
def test_poses_are_drawn_as_by_comfyui(name: str) -> None:
    style, expected = DRAWN[name]
    canvas = np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8)
    for pose in poses_of(frame()):
        draw_pose(canvas, pose, style)
    assert hashlib.sha256(canvas.tobytes()).hexdigest() == expected


def test_circles_are_cut_at_the_canvas() -> None:
    canvas = np.zeros((5, 6, 3), dtype=np.uint8)
    fill_circle(canvas, (0, 4), 1, (9, 9, 9))
    fill_circle(canvas, (100, 100), 3, (9, 9, 9))
    assert (canvas[..., 0] > 0).astype(int).tolist()[3:] == [[1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]]
    assert (canvas[:3] == 0).all()


def test_lines_reach_from_end_to_end_in_both_directions() -> None:
    there, back = line((0, 0), (5, 2)), line((5, 2), (0, 0))
    assert there[0] == (0, 0) and there[-1] == (5, 2) and len(there) == 6
    assert len(back) == 6 and line((3, 3), (3, 3)) == [(3, 3)]


def test_polygons_are_filled_within_the_canvas_however_far_they_reach() -> None:
    canvas = np.zeros((4, 6, 3), dtype=np.uint8)
    fill_polygon(canvas, [(1, -(10**30)), (3, -(10**30)), (3, 10**30), (1, 10**30)], (7, 7, 7))
    assert (canvas[:, 1:3] == 7).all() and (canvas[:, 3:] == 0).all() and (canvas[:, 0] == 0).all()


def test_an_ellipse_is_as_long_and_wide_as_its_radii() -> None:
    corners = np.array(ellipse((50, 40), (20, 4), 0))
    assert corners.min(axis=0).tolist() == [30, 36] and corners.max(axis=0).tolist() == [70, 44]
    turned = np.array(ellipse((50, 40), (20, 4), 90))
    assert turned.max(axis=0).tolist() == [54, 60]


def test_a_face_has_a_box_that_stays_in_the_image() -> None:
    face = np.array([(20, 30, 1), (40, 30, 1), (30, 50, 1)], dtype=np.float32)
    assert face_box(face, (100, 100), 1.0, is_square=False) == {"x": 20, "y": 30, "width": 20, "height": 20}
    grown = face_box(face, (100, 100), 4.0, is_square=False)
    assert grown == {"x": 10, "y": 15, "width": 40, "height": 39}, "cut to whole pixels, as 0.33.0 does"
    cut = face_box(face, (60, 45), 4.0, is_square=True)
    assert cut is not None and cut["x"] + cut["width"] <= 45 and cut["width"] == cut["height"]


def test_faces_without_an_area_have_no_box() -> None:
    assert face_box(np.zeros((70, 3), dtype=np.float32), (50, 50), 1.5, is_square=True) is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"pose_keypoints_2d": [1.0] * 53}, "pose_keypoints_2d: got 53 numbers, expected 54"),
        ({"hand_left_keypoints_2d": None}, "hand_left_keypoints_2d: got nothing, expected 63"),
        ({"foot_keypoints_2d": [[1.0, 2.0, 3.0]] * 6}, "foot_keypoints_2d: got 18 numbers, expected 18, three"),
        ({"face_keypoints_2d": ["x"] * 210}, "face_keypoints_2d: got .'x'.*, expected numbers"),
        ({"face_keypoints_2d": [10**400] * 210}, "face_keypoints_2d: got .1000.*, expected numbers"),
        ({"face_keypoints_2d": [None, [1.0]]}, "face_keypoints_2d: got .None.*, expected numbers"),
    ],
)
def test_lists_of_another_length_are_refused(change: dict[str, Any], problem: str) -> None:
    given = frame()
    given["people"][0] |= change
    with pytest.raises(ValueError, match=f"keypoints: {problem}"):
        list(poses_of(given))


@pytest.mark.parametrize("people", [None, 3, "people", {"0": {}}, [3], [None]])
def test_people_are_a_list_of_dictionaries(people: Any) -> None:
    with pytest.raises(ValueError, match="keypoints: people: got .*, expected a list with a dictionary for each"):
        list(poses_of(frame() | {"people": people}))


def test_people_may_lack_feet_and_have_points_at_infinity() -> None:
    given = frame()
    del given["people"][0]["foot_keypoints_2d"]
    given["people"][0]["pose_keypoints_2d"][0] = math.inf
    pose = next(iter(poses_of(given)))
    assert pose.feet.tolist() == [[0, 0, 0]] * 6 and np.isfinite(pose.body).all()


def test_canvases_of_no_or_too_many_pixels_are_refused() -> None:
    with pytest.raises(ValueError, match="got a canvas of 100000x150 px"):
        canvas_of(frame() | {"canvas_width": 100_000})


@pytest.mark.parametrize("side", [None, "x", [1], math.inf, math.nan])
def test_canvases_without_a_number_of_pixels_are_refused(side: Any) -> None:
    with pytest.raises(ValueError, match="keypoints: canvas_height: got .*, expected a number of pixels"):
        canvas_of(frame() | {"canvas_height": side})
