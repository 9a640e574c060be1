"""Nodes of poses: an image each, boxes each, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.errors import Interrupted
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


@pytest.mark.parametrize("keypoints", [3, "x", None, frame(), [frame(), 3]])
def test_other_values_than_a_list_of_poses_are_refused(tmp_path: Path, keypoints: Any) -> None:
    context = node_context(small_store(tmp_path))
    for call in (sdpose_draw_keypoints, sdpose_face_bboxes):
        with pytest.raises(ValueError, match="keypoints: got .*, expected a list with a dictionary for each image"):
            call(context, keypoints=keypoints)


class Ending(CancelToken):
    """A token that is set at its second check."""

    num_checks = 0

    def check(self) -> None:
        self.num_checks += 1
        if self.num_checks == 2:
            self.cancel()
        super().check()


def test_drawing_ends_between_two_people_when_the_run_is_cancelled(tmp_path: Path) -> None:
    context = replace(node_context(small_store(tmp_path)), cancel=Ending())
    with pytest.raises(Interrupted):
        sdpose_draw_keypoints(context, keypoints=[frame()])


def test_poses_that_the_prompt_gives_are_checked_before_the_run() -> None:
    environment: Any = None
    for node in (sdpose_draw_keypoints, sdpose_face_bboxes):
        assert node.check is not None
        assert node.check(environment, [frame()]) is None
        assert node.check(environment, None) is None, "those of another node are not known"
        found = node.check(environment, [frame() | {"canvas_width": 0}])
        assert found == "keypoints: got a canvas of 0x150 px, expected sides of 1 to 16384 px"
