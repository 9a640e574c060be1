"""Nodes of poses: an image each, boxes each, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from darkroom.engine.nodes.library.image.poses import sdpose_draw_keypoints, sdpose_face_bboxes
from tests.engine.images.test_poses import HEIGHT, WIDTH, frame
from tests.engine.nodes.small_store import node_context, small_store


def test_each_image_has_its_people(tmp_path: Path) -> None:
    context, nobody = node_context(small_store(tmp_path)), frame() | {"people": []}
    drawn = sdpose_draw_keypoints(context, keypoints=[frame(), nobody])
    assert drawn.shape == (2, HEIGHT, WIDTH, 3) and drawn[0].max() == 1 and drawn[1].max() == 0
    boxes = sdpose_face_bboxes(context, keypoints=[frame(), nobody])
    assert [len(item) for item in boxes] == [2, 0] and set(boxes[0][0]) == {"x", "y", "width", "height"}


def test_no_pose_at_all_is_a_small_black_image(tmp_path: Path) -> None:
    drawn = sdpose_draw_keypoints(node_context(small_store(tmp_path)), keypoints=[])
    assert torch.equal(drawn, torch.zeros(1, 64, 64, 3))


def test_more_images_than_fit_the_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = node_context(small_store(tmp_path), tmp_path)
    monkeypatch.setattr(context.files, "free_bytes", lambda: 1000)
    with pytest.raises(ValueError, match="keypoints: too large for the free memory"):
        sdpose_draw_keypoints(context, keypoints=[frame()])
