"""Bounding boxes: made, cut out, drawn, and refused where they are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.nodes.base import NodeContext, NodeOutput
from darkroom.engine.nodes.library.image import boxes as nodes
from tests.engine.nodes.small_store import node_context, small_store


@pytest.fixture
def context(tmp_path: Path) -> NodeContext:
    return node_context(small_store(tmp_path), tmp_path)


def ramp(batch: int = 1, height: int = 8, width: int = 10) -> torch.Tensor:
    """Return images whose red is the column and whose green is the row, in hundredths."""
    columns = torch.arange(width).expand(batch, height, width) / 100
    rows = torch.arange(height)[None, :, None].expand(batch, height, width) / 100
    return torch.stack((columns, rows, torch.zeros_like(rows)), dim=-1)


def box(x: float, y: float, width: float, height: float, **more: Any) -> dict[str, Any]:
    return {"x": x, "y": y, "width": width, "height": height, **more}


def test_a_region_is_cropped_and_shown(context: NodeContext) -> None:
    made = nodes.image_crop_v2(context, image=ramp(2), crop_region=box(3, 2, 4, 100))
    assert isinstance(made, NodeOutput)
    (cropped,) = made.result
    assert cropped.shape == (2, 6, 4, 3) and cropped[0, 0, 0].tolist() == pytest.approx([0.03, 0.02, 0.0])
    assert [item["type"] for item in made.ui["images"]] == ["temp", "temp"]


@pytest.mark.parametrize("region", [None, {}, box(-1, 0, 5, 5), box(0, 0, 0, 5), {**box(0, 0, 5, 5), "x": "1"}])
def test_what_is_no_region_is_refused_before_anything_runs(region: object) -> None:
    environment: Any = None
    check = nodes.image_crop_v2.check
    assert check is not None
    complaint = check(environment, region)
    assert complaint is not None and complaint.startswith("no region")


def test_a_linked_value_that_is_no_box_is_named(context: NodeContext) -> None:
    with pytest.raises(ValueError, match="bboxes: no bounding box"):
        nodes.image_crop_v2(context, image=ramp(), crop_region=[[box(0, 0, 2, 2)]])


def test_images_are_cropped_to_what_holds_their_boxes(context: NodeContext) -> None:
    boxes = [[box(2, 1, 2, 2), box(4, 3, 2, 2)], []]
    made = nodes.crop_by_bboxes(context, image=ramp(2), bboxes=boxes, output_width=4, output_height=4)
    assert made.shape == (1, 4, 4, 3)  # the second image has no box
    assert made[0, 0, 0].tolist() == pytest.approx([0.02, 0.01, 0.0])


def test_a_crop_that_keeps_its_aspect_has_black_around_it(context: NodeContext) -> None:
    made = nodes.crop_by_bboxes(
        context, image=torch.ones(1, 8, 10, 3), bboxes=box(0, 0, 8, 4), output_width=8, output_height=8,
        keep_aspect="pad",
    )  # fmt: skip
    assert made[0, :2].sum() == 0 and made[0, -2:].sum() == 0 and made[0, 2:6].min() == 1.0


def test_boxes_outside_of_an_image_give_its_upper_middle(context: NodeContext) -> None:
    made = nodes.crop_by_bboxes(context, image=ramp(1, 100, 100), bboxes=box(900, 900, 5, 5), output_width=30,
                                output_height=30)  # fmt: skip
    assert made[0, 0, 0].tolist() == pytest.approx([0.35, 0.1, 0.0])


def test_boxes_are_drawn_the_surest_last(context: NodeContext) -> None:
    boxes = [box(1, 1, 8, 8, score=0.9, label="car"), box(1, 1, 8, 8, score=0.2)]
    made = nodes.draw_bboxes(context, bboxes=boxes, image=torch.zeros(1, 12, 12, 3))
    assert made[0, 1, 5].tolist() == [0.0, 0.0, 1.0]  # the colour of cars


def test_without_images_boxes_are_drawn_on_black_that_holds_them(context: NodeContext) -> None:
    assert nodes.draw_bboxes(context, bboxes=box(0, 0, 30, 20)).shape == (1, 20, 30, 3)
    with pytest.raises(ValueError, match="bboxes: no image holds them; got 1 of 100000x5 px"):
        nodes.draw_bboxes(context, bboxes=box(0, 0, 100_000, 5))


@pytest.mark.parametrize("found", [5, "x", [[3]], [{"x": 1}], box(0, 0, float("nan"), 1), box(0, 0, True, 1)])
def test_what_is_no_box_is_named(context: NodeContext, found: object) -> None:
    with pytest.raises(ValueError, match="bboxes: no bounding box"):
        nodes.draw_bboxes(context, bboxes=found, image=ramp())
