"""Camera angles about a subject: where the camera is, and the words for its shot."""

from __future__ import annotations

import math
from typing import Any

import pytest

from darkroom.engine.media.camera_angles import described_angle, subject_camera


@pytest.mark.parametrize(
    ("horizontal", "vertical", "zoom", "words"),
    [
        (0, 0, 5.0, "front view eye-level shot medium shot"),
        (360, 0, 5.0, "front view eye-level shot medium shot"),
        (22, -16, 1.9, "front view low-angle shot wide shot"),
        (23, -15, 2.0, "front-right quarter view eye-level shot medium shot"),
        (90, 15, 6.0, "right side view elevated shot close-up"),
        (180, 45, 10.0, "back view high-angle shot close-up"),
        (333, 17, 5.0, "front-left quarter view elevated shot medium shot"),
        (338, 60, 0.0, "front view high-angle shot wide shot"),
    ],
)
def test_a_shot_is_named_by_side_height_and_distance(horizontal: int, vertical: int, zoom: float, words: str) -> None:
    assert described_angle(horizontal, vertical, zoom) == words


def test_the_camera_is_six_away_in_the_direction_of_the_angle_and_looks_at_the_origin() -> None:
    camera: dict[str, Any] = subject_camera(90, 30, 5.0)
    assert camera["position"] == {
        "x": pytest.approx(6 * math.sqrt(3) / 2),
        "y": pytest.approx(3.0),
        "z": pytest.approx(0.0, abs=1e-12),
    }
    assert camera["target"] == {"x": 0.0, "y": 0.0, "z": 0.0}
    assert (camera["fov"], camera["cameraType"]) == (35.0, "perspective")


@pytest.mark.parametrize(("zoom", "enlargement"), [(0.0, 1.0), (5.0, 1.4375), (10.0, 1.875)])
def test_a_zoom_enlarges_and_leaves_the_camera_where_it_is(zoom: float, enlargement: float) -> None:
    camera = subject_camera(0, 0, zoom)
    assert camera["zoom"] == pytest.approx(enlargement)
    assert camera["position"] == {"x": 0.0, "y": 0.0, "z": 6.0}
