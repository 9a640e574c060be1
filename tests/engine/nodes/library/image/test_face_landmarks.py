"""Nodes of MediaPipe's face landmarker: how many faces, which detector, and what is drawn of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from darkroom.engine.media.frame_stream import FrameStream
from darkroom.engine.nodes.library.image import face_landmarks as nodes
from darkroom.engine.nodes.library.image.face_landmarks import (
    load_mediapipe_face_landmarker,
    mediapipe_face_landmarker,
    mediapipe_face_mask,
    mediapipe_face_mesh_visualize,
)
from tests.engine.nodes.small_store import node_context, small_store
from tests.parity.models import read_layouts, write_model

SIDES = (48, 64)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("faces")
    write_model(next(item for item in read_layouts() if item.name == "face_landmarker"), folder)
    return node_context(small_store(folder))


@pytest.fixture(scope="module")
def model(context: Any) -> Any:
    return load_mediapipe_face_landmarker(context, model_name="face_landmarker.safetensors")


def images(count: int) -> torch.Tensor:
    return torch.rand(count, *SIDES, 4, generator=torch.Generator().manual_seed(0))


def found(context: Any, model: Any, image: Any, **inputs: Any) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
    landmarks, boxes = mediapipe_face_landmarker(context, face_detection_model=model, image=image, **inputs)
    return dict(landmarks), boxes


def test_faces_have_landmarks_expressions_a_pose_and_a_box(context: Any, model: Any) -> None:
    landmarks, boxes = found(context, model, images(2), num_faces=2)
    assert landmarks["image_size"] == SIDES and [len(faces) for faces in landmarks["frames"]] == [2, 2]
    face, box = landmarks["frames"][0][0], boxes[0][0]
    assert face["landmarks_xy"].shape == (478, 2) and face["landmarks_3d"].shape == (478, 3)
    assert len(face["blendshapes"]) == 52 and face["transformation_matrix"].shape == (4, 4)
    assert (box["label"], box["score"]) == ("face", face["score"])
    assert [box["x"], box["y"]] == pytest.approx(face["landmarks_xy"].min(axis=0).tolist())
    scores = [[face["score"] for face in faces] for faces in landmarks["frames"]]
    assert all(first >= second for first, second in scores)


def test_a_stream_has_the_faces_of_a_batch(context: Any, model: Any) -> None:
    batch = images(3)
    stream = FrameStream((3, *SIDES, 4), lambda: iter(torch.split(batch, 2)))
    assert found(context, model, stream)[1] == found(context, model, batch)[1]


def test_both_detectors_keep_the_faces_of_the_one_that_found_more(context: Any, model: Any) -> None:
    counts = {
        variant: len(found(context, model, images(1), detector_variant=variant, num_faces=0, min_confidence=0.9)[1][0])
        for variant in ("short", "full", "both")
    }
    assert counts["both"] == max(counts["short"], counts["full"]) > 1


def test_no_face_is_sure_enough_for_the_highest_confidence(context: Any, model: Any) -> None:
    landmarks, boxes = found(context, model, images(1), min_confidence=1.0)
    assert boxes == [[]]
    mask = mediapipe_face_mask(context, face_landmarks=landmarks, regions={"regions": "all"})
    assert torch.equal(mask, torch.zeros(1, *SIDES))


def square(part: str) -> dict[str, Any]:
    """Landmarks of two images, a square face in the first; the given part is its outline."""
    corners = np.array([[10, 8], [30, 8], [30, 20], [10, 20]], dtype=np.float32)
    edges: dict[str, frozenset[tuple[int, int]]] = {name: frozenset() for name in nodes.DRAWN}
    edges[part] = frozenset({(0, 1), (1, 2), (2, 3), (3, 0)})
    return {"frames": [[{"landmarks_xy": corners}], []], "image_size": SIDES, "connection_sets": edges}


@pytest.mark.parametrize(
    ("regions", "num_pixels"),
    [({"regions": "all"}, 21 * 13), ({"regions": "custom", **dict.fromkeys(nodes.MASKED, False)}, 0)],
)
def test_a_mask_is_the_inside_of_the_chosen_parts(context: Any, regions: dict[str, Any], num_pixels: int) -> None:
    mask = mediapipe_face_mask(context, face_landmarks=square("lips"), regions=regions)
    assert mask.shape == (2, *SIDES) and mask.sum() == num_pixels == mask[0].sum()


def test_lines_are_drawn_over_the_image_or_on_black(context: Any) -> None:
    image = torch.ones(1, *SIDES, 3)
    options: dict[str, Any] = {"connections": {"connections": "all"}, "color": "#ff0000", "point_size": 0}
    over = mediapipe_face_mesh_visualize(context, face_landmarks=square("nose"), image=image, **options)
    assert over.shape == (1, *SIDES, 3) and (over[..., 1] == 0).sum() == 2 * (21 + 13) - 4
    black = mediapipe_face_mesh_visualize(context, face_landmarks=square("nose"), **options)
    assert black.shape == (2, *SIDES, 3) and black[0, 8, 10].tolist() == [1, 0, 0] and black[1].sum() == 0


def test_a_custom_choice_leaves_parts_out_and_fill_is_the_whole_face(context: Any) -> None:
    options: dict[str, Any] = {"color": "no colour", "point_size": 0, "thickness": 1}
    chosen = {"connections": "custom", **dict.fromkeys(nodes.DRAWN, True), "nose": False}
    less = mediapipe_face_mesh_visualize(context, face_landmarks=square("nose"), connections=chosen, **options)
    assert less.sum() == 0
    fill = {"connections": "fill"}
    whole = mediapipe_face_mesh_visualize(context, face_landmarks=square("face_oval"), connections=fill, **options)
    assert whole[0, 12, 20].tolist() == [0, 1, 0] and whole.sum() == 21 * 13


def test_more_images_than_fit_the_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = node_context(small_store(tmp_path), tmp_path)
    monkeypatch.setattr(context.files, "free_bytes", lambda: 1000)
    with pytest.raises(ValueError, match="face_landmarks: too large for the free memory"):
        mediapipe_face_mask(context, face_landmarks=square("lips"), regions={"regions": "all"})
    with pytest.raises(ValueError, match="face_landmarks: too large for the free memory"):
        mediapipe_face_mesh_visualize(
            context, face_landmarks=square("lips"), connections={"connections": "all"}, color="#00ff00"
        )


def test_landmarks_far_outside_take_no_time(context: Any) -> None:
    landmarks = square("nose")
    landmarks["frames"][0][0]["landmarks_xy"] *= np.float32(1e30)
    image = mediapipe_face_mesh_visualize(
        context, face_landmarks=landmarks, connections={"connections": "all"}, color="#00ff00", thickness=8
    )
    assert image.shape == (2, *SIDES, 3)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"none\.safetensors"):
        load_mediapipe_face_landmarker(node_context(small_store(tmp_path)), model_name="none.safetensors")
