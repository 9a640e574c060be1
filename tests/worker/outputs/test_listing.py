"""Outputs among the things that nodes show."""

from __future__ import annotations

from darkroom.worker.outputs.listing import InlineOutput, ListedFile, listed_outputs


def test_what_the_widgets_of_a_page_read_is_no_output() -> None:
    shown = {
        "images": [{"filename": "a.png", "subfolder": "", "type": "temp"}],
        "compositor_layers": [{"filename": "b.png", "subfolder": "", "type": "temp"}],
        "compositor_inputs": ["0123456789abcdef"],
        "compositor_bboxes": [{"x": 1}],
        "histogram": list(range(256)),
        "dims": [512, 512],
    }
    assert listed_outputs({"1": shown}) == [ListedFile("1", "images", "a.png", "", "temp")]


def test_a_shown_text_is_an_output() -> None:
    assert listed_outputs({"1": {"text": ["12 faces"]}}) == [InlineOutput("1", "text", "12 faces")]


def test_a_saved_model_is_listed_once() -> None:
    saved = {"filename": "x.glb", "subfolder": "3d", "type": "output"}
    shown = {"result": ["3d/x.glb", {"fov": 35}, []], "3d": [saved]}
    assert listed_outputs({"1": shown}) == [ListedFile("1", "3d", "x.glb", "3d", "output")]
