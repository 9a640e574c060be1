"""Layers: stacked, composed, as the page has saved them, and refused where they are too large or too many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.images.layers.blend_modes import BLEND_MODES, blended
from darkroom.engine.images.layers.saved_composition import read_composition
from darkroom.engine.nodes.base import NodeContext, NodeOutput
from darkroom.engine.nodes.library.image import layers as nodes
from tests.engine.nodes.small_store import node_context, small_store

RED, GREEN = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)


@pytest.fixture
def context(tmp_path: Path) -> NodeContext:
    return node_context(small_store(tmp_path), tmp_path)


def plain(color: tuple[float, ...], width: int = 8, height: int = 6, batch: int = 1) -> torch.Tensor:
    return torch.tensor(color).expand(batch, height, width, len(color)).clone()


def composed(context: NodeContext, layers: Any, saved: Any = None) -> NodeOutput:
    made = nodes.image_compositor(context, layers=layers, compositor=saved or {})
    assert isinstance(made, NodeOutput)
    return made


def test_a_later_layer_lies_above_and_a_lower_z_index_below(context: NodeContext) -> None:
    stack = nodes.add_layer(context, image=plain(RED))
    stack = nodes.add_layer(context, image=plain(GREEN, 2, 2), layers=stack, x=3, y=1)
    image, mask = composed(context, stack).result
    assert image.shape == (1, 6, 8, 3) and mask.max() == 0
    assert image[0, 1, 3].tolist() == pytest.approx(GREEN) and image[0, 0, 0].tolist() == pytest.approx(RED)
    stack = nodes.add_layer(context, image=plain((0.0, 0.0, 1.0), 20, 6), layers=stack, z_index=-1)
    image, _ = composed(context, stack).result
    assert image.shape == (1, 6, 20, 3) and image[0, 0, 0].tolist() == pytest.approx(RED)


def test_what_no_layer_covers_is_transparent(context: NodeContext) -> None:
    hole = torch.zeros(1, 6, 8)
    hole[..., :4] = 1.0
    image, mask = composed(context, nodes.add_layer(context, image=plain(RED), mask=hole, x=2)).result
    assert image.shape == (1, 6, 10, 4)
    assert mask[0, 0].tolist() == [1.0] * 6 + [0.0] * 4


def test_a_layer_is_scaled_turned_and_flipped(context: NodeContext) -> None:
    half = plain(RED)
    half[..., 4:, :] = torch.tensor(GREEN)
    image, _ = composed(context, nodes.add_layer(context, image=half, width=16, height=12, flip_h=True)).result
    assert image.shape == (1, 12, 16, 3) and image[0, 0, 0].tolist() == pytest.approx(GREEN)
    image, _ = composed(context, nodes.add_layer(context, image=half, rotation=90.0, x=10, y=10)).result
    visible = (image[0, ..., 3] > 0.5).nonzero()
    rows, columns = (visible.amax(0) - visible.amin(0) + 1).tolist()
    assert (rows, columns) == (8, 6)


def test_a_saved_composition_counts_for_the_layers_that_it_was_saved_for(context: NodeContext) -> None:
    stack = nodes.add_layer(context, image=plain(RED))
    first = composed(context, stack)
    saved = {
        "version": 1,
        "canvas": {"w": 20, "h": 10},
        "layers": [{"transform": {"x": 5, "y": 2, "w": 4, "h": 4}, "opacity": 7.0}],
        "inputs": first.ui["compositor_inputs"],
        "background": {"color": "#00f", "opacity": 1.0},
    }
    made = composed(context, stack, saved)
    image, _ = made.result
    assert image.shape == (1, 10, 20, 3) and "compositor_state_stale" not in made.ui
    assert image[0, 3, 6].tolist() == pytest.approx(RED) and image[0, 0, 0].tolist() == pytest.approx([0.0, 0.0, 1.0])
    other = composed(context, nodes.add_layer(context, image=plain(GREEN)), saved)
    assert other.result[0].shape == (1, 6, 8, 3) and other.ui["compositor_state_stale"] == [True]


@pytest.mark.parametrize(
    "found", [None, "", "{", [], {"canvas": 1}, {"canvas": {"w": 1, "h": 1}}, {"version": 9, "layers": [1]}, "[" * 9999]
)
def test_what_is_no_composition_is_passed_over(found: object) -> None:
    assert read_composition(found) is None


def test_a_canvas_and_a_layer_have_a_largest_size(context: NodeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context.files, "max_pixels", lambda: 10_000)
    with pytest.raises(ValueError, match="layers: the canvas is too large; got 16008x6 px"):
        composed(context, nodes.add_layer(context, image=plain(RED), x=16000))
    stack = {**nodes.add_layer(context, image=plain(RED), width=16000), "canvas": (8, 6)}
    with pytest.raises(ValueError, match="layers: a layer is too large; got 16000x6 px"):
        composed(context, stack)


def test_more_than_fifty_layers_and_unknown_items_are_refused(context: NodeContext) -> None:
    with pytest.raises(ValueError, match="layers: too many; got 51, expected at most 50"):
        composed(context, nodes.add_layer(context, image=plain(RED, batch=51)))
    for item in ({}, {"image": 5}, {"image": plain(RED), "blend_mode": "x"}, {"type": "text"}, 7):
        with pytest.raises(ValueError, match="layers: "):
            composed(context, {"layers": [item]})


def test_boxes_place_the_images_of_a_batch(context: NodeContext) -> None:
    boxes = '[{"x": 4, "y": 2, "width": 2, "height": 2, "metadata": {"name": "a"}}, {"bbox": [0, 500, 1000, 1000]}]'
    stack = nodes.layers_from_bounding_boxes(
        context, image=plain(RED, batch=1), bboxes=boxes.split(', {"bbox')[0] + "]"
    )
    assert [(item["x"], item["y"], item["w"], item["name"]) for item in stack["layers"]] == [(4, 2, 2, "a")]
    stack = nodes.layers_from_bounding_boxes(
        context, image=plain(RED, batch=2), bboxes=[{"bbox": [0, 500, 1000, 1000]}], canvas_width=40, canvas_height=20
    )
    assert stack["canvas"] == (40, 20)
    assert [(item["x"], item.get("w")) for item in stack["layers"]] == [(20, 20), (0, None)]
    with pytest.raises(ValueError, match="bboxes: elements without a canvas"):
        nodes.layers_from_bounding_boxes(context, image=plain(RED), bboxes=[{"bbox": [0, 0, 1, 1]}])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("multiply", 0.125), ("darken", 0.25), ("lighten", 0.5), ("linear-dodge", 0.75), ("subtract", 0.25),
        ("divide", 1.0),
    ],
)  # fmt: skip
def test_modes_of_light_are_their_formulas(mode: str, expected: float) -> None:
    below, layer = torch.full((1, 3), 0.5), torch.full((1, 3), 0.25)
    assert blended(mode, below, layer)[0].tolist() == pytest.approx([expected] * 3)


@pytest.mark.parametrize("mode", sorted(BLEND_MODES))
def test_every_mode_gives_finite_colours_at_the_ends_of_the_range(mode: str) -> None:
    ends = torch.cartesian_prod(*[torch.tensor([0.0, 0.5, 1.0])] * 6)
    assert torch.isfinite(blended(mode, ends[:, :3], ends[:, 3:])).all()
