"""Faces of images that have none; lines of landmarks; boxes of anchors; poses; and files that are refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from darkroom.engine.errors import BadModelFile
from darkroom.engine.models.kinds.face_landmarks.face_boxes import (
    anchor_centres,
    detected_faces,
    in_image,
    rectangle_of,
)
from darkroom.engine.models.kinds.face_landmarks.face_detectors import FullRangeDetector, ShortRangeDetector
from darkroom.engine.models.kinds.face_landmarks.face_pose import face_pose
from darkroom.engine.models.kinds.face_landmarks.face_template import FaceTemplate, rings_of
from darkroom.engine.models.kinds.face_landmarks.faces import EMPTY, INTERPOLATE, PREVIOUS, Face, filled
from darkroom.engine.models.kinds.face_landmarks.load_face_landmarker import load_face_landmarker
from tests.parity.models import read_layouts, write_model


def face(x: float, score: float = 0.5) -> Face:
    """A face of one landmark at x."""
    return {
        "bbox_xyxy": np.array([x - 1, 0, x + 1, 2], dtype=np.float32),
        "blendshapes": {"jawOpen": score},
        "landmarks_xy": np.full((1, 2), x, dtype=np.float32),
        "landmarks_3d": np.zeros((1, 3), dtype=np.float32),
        "presence": score,
        "score": score,
    }


def places(frames: list[list[Face]]) -> list[list[float]]:
    return [[round(float(item["landmarks_xy"][0, 0]), 3) for item in faces] for faces in frames]


def test_images_without_faces_stay_so_or_have_those_of_the_last_one() -> None:
    frames = [[], [face(3)], [], [face(9)], []]
    assert places(filled(frames, EMPTY)) == [[], [3], [], [9], []]
    assert places(filled(frames, PREVIOUS)) == [[], [3], [3], [9], [9]]


def test_faces_between_two_images_go_evenly_and_the_nearest_are_paired() -> None:
    frames = [[], [face(0, 0.2), face(50)], [], [], [face(56), face(3, 0.8), face(400)], []]
    found = filled(frames, INTERPOLATE)
    assert places(found) == [[0, 50], [0, 50], [1, 52], [2, 54], [56, 3, 400], [56, 3, 400]]
    assert found[2][0]["score"] == pytest.approx(0.4) and found[3][0]["blendshapes"]["jawOpen"] == pytest.approx(0.6)
    assert filled([[], []], INTERPOLATE) == [[], []]


def test_a_part_of_several_closed_lines_has_a_ring_for_each() -> None:
    rings = rings_of(frozenset({(4, 7), (1, 4), (7, 1), (20, 21), (21, 22), (22, 20)}))
    assert sorted(sorted(ring) for ring in rings) == [[1, 4, 7], [20, 21, 22]]


def test_lines_that_branch_end_without_repeating_a_landmark() -> None:
    edges = frozenset({(0, 1), (1, 2), (2, 3), (3, 1), (3, 4)})
    visited = [vertex for ring in rings_of(edges) for vertex in ring]
    assert sorted(visited) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("detector", "count"), [(ShortRangeDetector, 896), (FullRangeDetector, 2304)])
def test_a_detector_has_values_for_each_anchor(detector: type[Any], count: int) -> None:
    offsets, logits = detector()(torch.zeros(2, 3, detector.side_px, detector.side_px))
    assert offsets.shape == (2, count, 16) and logits.shape == (2, count)
    centres = anchor_centres(detector.grids)
    assert centres.shape == (count, 2) and centres[0].tolist() == centres[0].tolist()[::-1]


def anchors(*boxes: tuple[float, float, float, float]) -> np.ndarray:
    """Offsets [A, 16] of anchors with these middles and sides, all points in the middle."""
    return np.array([[x, y, w, h, *[x, y] * 6] for x, y, w, h in boxes], dtype=np.float32)


def test_overlapping_boxes_are_one_face_weighted_by_score_and_the_surest_is_first() -> None:
    offsets = anchors((10, 10, 40, 40), (80, 80, 20, 20), (18, 10, 40, 40), (0, 0, 9, 9))
    logits = np.array([0.0, 9.0, math.log(3), -9.0], dtype=np.float32)
    found = detected_faces(offsets, logits, np.zeros((4, 2), dtype=np.float32), 100, 0.5)
    assert found[:, 16] == pytest.approx([1 / (1 + math.exp(-9)), 0.75])
    assert found[1, :4] == pytest.approx([-0.052, -0.1, 0.348, 0.3])  # (0.5 * 0.1 + 0.75 * 0.18) / 1.25 in the middle
    assert len(detected_faces(offsets, logits, np.zeros((4, 2), dtype=np.float32), 100, 1.0)) == 0


def test_places_in_the_square_around_an_image_become_shares_of_the_image() -> None:
    row = np.array([[0.0, 0.25, 1.0, 0.75, *[0.5] * 12, 0.9]], dtype=np.float32)
    assert in_image(row, 200, 100)[0, :5] == pytest.approx([0, 0, 1, 1, 0.5])


def test_a_rectangle_is_half_larger_than_the_box_and_level_with_the_eyes() -> None:
    row = np.array([0.2, 0.2, 0.6, 0.4, 0.3, 0.3, 0.5, 0.5, *[0] * 8, 0.9], dtype=np.float32)
    found = rectangle_of(row, 100, 100)
    assert found == pytest.approx((40, 30, 60, 30, math.pi / 4))


def test_a_pose_puts_the_usual_face_before_the_camera_where_it_is_seen() -> None:
    usual = np.random.default_rng(0).normal(size=(20, 3))
    template = FaceTemplate({}, usual, np.arange(20), np.ones(20))
    turn, scale, depth = math.radians(20), 1.0, 40.0
    rotation = np.array([[math.cos(turn), 0, math.sin(turn)], [0, 1, 0], [-math.sin(turn), 0, math.cos(turn)]])
    seen = scale * usual @ rotation.T + (3.0, -2.0, -depth)
    tangent = math.tan(math.radians(63) / 2)
    height, width = 480, 640
    shares = seen[:, :2] / -seen[:, 2:] / (tangent * width / height, tangent)
    pixels = (shares * (1, -1) + 1) / 2 * (width, height)
    depths = -(seen[:, 2] + depth) / depth / (2 * tangent * width / height) * width
    landmarks = np.column_stack((pixels, depths)).astype(np.float32)
    found = face_pose(landmarks, pixels.astype(np.float32), (height, width), template)
    assert np.allclose(found[:3, :3] / np.cbrt(np.linalg.det(found[:3, :3])), rotation, atol=0.05)
    assert found[0, 3] / -found[2, 3] == pytest.approx(3 / depth, rel=0.05)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layout = next(item for item in read_layouts() if item.name == "face_landmarker")
    return write_model(layout, tmp_path_factory.mktemp("faces"))


@pytest.mark.parametrize(
    ("name", "values", "found"),
    [
        ("topology.lips", torch.tensor([[3, 478]]), "other pairs than two of the 478 landmarks"),
        ("topology.lips", torch.tensor([[3, 3]]), "other pairs than two of the 478 landmarks"),
        ("topology.lips", torch.zeros(4), "expected at most 10000 pairs"),
        ("procrustes_indices", torch.tensor([1, 2]), "sizes that do not fit"),
        ("procrustes_weights", torch.full((33,), -1.0), "no weight above 0"),
        ("canonical_vertices", torch.zeros(400_000, 3), "expected a small table"),
        ("mesh.stem.weight", torch.zeros(16, 3, 5, 5), "shape"),
    ],
)
def test_files_of_other_tables_are_refused_by_name(
    file: Path, tmp_path: Path, name: str, values: torch.Tensor, found: str
) -> None:
    save_file({**load_file(file), name: values}, tmp_path / "odd.safetensors")
    with pytest.raises(BadModelFile, match=found):
        load_face_landmarker(tmp_path / "odd.safetensors")


@pytest.mark.parametrize("name", ["topology.nose", "canonical_vertices", "detector_full.stem.weight"])
def test_files_without_a_part_are_refused_by_name(file: Path, tmp_path: Path, name: str) -> None:
    tensors = load_file(file)
    del tensors[name]
    save_file(tensors, tmp_path / "less.safetensors")
    with pytest.raises(BadModelFile, match=name):
        load_face_landmarker(tmp_path / "less.safetensors")


def test_other_files_are_refused(tmp_path: Path) -> None:
    save_file({"mesh.stem.weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(BadModelFile, match="expected MediaPipe's face landmarker"):
        load_face_landmarker(tmp_path / "other.safetensors")
