"""Regions that are drawn in a page, as boxes, elements and a preview."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.nodes.base import NodeOutput
from darkroom.engine.nodes.library.image.regions import create_bounding_boxes

context: Any = None
HOUSE = {
    "x": 100, "y": 50, "width": 200, "height": 100,
    "metadata": {"type": "obj", "desc": "a house", "palette": ["#aa3322"]},
}  # fmt: skip


def made(**inputs: Any) -> NodeOutput:
    output = create_bounding_boxes(context, **{"width": 1000, "height": 500, **inputs})
    assert isinstance(output, NodeOutput)
    return output


def test_drawn_regions_become_boxes_and_elements() -> None:
    preview, boxes, elements = made(editor_state=[HOUSE]).result
    assert preview.shape == (1, 500, 1000, 3)
    assert boxes == [[{"x": 100, "y": 50, "width": 200, "height": 100}]]
    expected = {"type": "obj", "bbox": [100, 100, 300, 300], "desc": "a house", "color_palette": ["#AA3322"]}
    assert elements == [expected]


def test_the_preview_shows_the_outline_in_the_colour_of_the_palette() -> None:
    preview, _, _ = made(editor_state=[HOUSE]).result
    assert (preview[0, 150, 250] * 255).round().tolist() == [0xAA, 0x33, 0x22]


def test_linked_elements_count_until_the_page_has_drawn_on_them() -> None:
    linked = '[{"bbox": [0, 0, 500, 500], "type": "text", "text": "OPEN", "desc": "a sign"}]'
    first = made(bboxes=linked, editor_state=[HOUSE])
    assert first.result[2][0]["text"] == "OPEN"
    again = made(bboxes=linked, editor_state=[HOUSE], last_incoming=first.ui["input_bboxes"])
    assert again.result[2][0]["desc"] == "a house"


def test_a_large_background_gives_a_preview_of_1024_pixels() -> None:
    preview, boxes, _ = made(background=torch.ones(1, 1000, 2000, 3)).result
    assert preview.shape == (1, 512, 1024, 3) and boxes == []
    assert float(preview.max()) == pytest.approx(0.25, abs=0.01)  # dimmed


def test_long_descriptions_and_odd_entries_cost_little() -> None:
    odd: Any = [7, {}, {**HOUSE, "metadata": {"desc": "word " * 200_000, "palette": [None, 3, "#zz"], "type": 5}}]
    preview, _, elements = made(editor_state=odd).result
    assert preview.shape == (1, 500, 1000, 3) and len(elements) == 2


@pytest.mark.parametrize("linked", [5, "{", '{"x": 1}', [{"bbox": [1, 2]}], [{"bbox": "abcd"}], [HOUSE] * 1001])
def test_what_is_no_box_is_named(linked: object) -> None:
    with pytest.raises(ValueError, match="bboxes: "):
        made(bboxes=linked)
