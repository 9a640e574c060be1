"""Nodes that make meshes and images of splats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from darkroom.engine.media.splats.splat import ATTRIBUTES, Splat
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.library.media.splat_surfaces import render_splat, splat_to_mesh
from tests.engine.media.splats.test_surface import ball
from tests.engine.nodes.small_store import node_context, small_store


@pytest.fixture
def context(tmp_path: Path) -> NodeContext:
    return node_context(small_store(tmp_path), tmp_path)


def pair() -> Splat:
    """Return a batch of a ball and of one that is nearly empty."""
    item = ball(1500)
    stacked = [torch.stack([getattr(item, name)] * 2) for name in ATTRIBUTES]
    return replace(Splat(*stacked), counts=torch.tensor([1500, 0]))


def test_batch_becomes_meshes_of_different_sizes(context: NodeContext) -> None:
    mesh = splat_to_mesh(context, splat=pair(), resolution=64)
    assert len(mesh) == 2
    assert mesh.vertex_counts[0] > 500
    assert mesh.vertex_counts[1] == 0


def test_turn_has_as_many_frames_of_each_splat(context: NodeContext) -> None:
    image, mask = render_splat(context, splat=pair(), width=64, height=64, frames=-2, render_style="color",
                               background="#0000ff")  # fmt: skip
    assert image.shape == (4, 64, 64, 3)
    assert mask[0, 32, 32] > 0.5
    assert mask[2:].max() == 0
    assert image[3, 0, 0].tolist() == [0, 0, 1]


def test_background_image_is_repeated_and_faint_gaussians_are_left_out(context: NodeContext) -> None:
    plates = torch.stack([torch.zeros(8, 8, 3), torch.ones(8, 8, 3)])
    image, mask = render_splat(context, splat=pair(), width=64, height=64, frames=2, render_style="color",
                               opacity_threshold=1.0, bg_image=plates)  # fmt: skip
    assert image[:, 0, 0, 0].tolist() == pytest.approx([0, 1, 0, 1])
    assert mask[0, 32, 32] > 0.5  # all are opaque


@pytest.mark.parametrize("call", ["frames", "resolution"])
def test_what_exceeds_the_free_memory_is_refused(
    context: NodeContext, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context.files, "free_bytes", lambda: 1000, raising=False)
    with pytest.raises(ValueError, match=f"{call}: too large for the free memory"):
        if call == "frames":
            render_splat(context, splat=pair(), render_style="color")
        else:
            splat_to_mesh(context, splat=pair())
