"""Nodes that prepare images: results compared with ComfyUI's are in the parity cases; here limits and order."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from darkroom.engine.images.training_pixels import TooManyPixels
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.library.image import training_images
from tests.engine.nodes.small_store import node_context, small_store


@pytest.fixture
def context(tmp_path: Path) -> NodeContext:
    return node_context(small_store(tmp_path), tmp_path)


def limited(context: NodeContext, pixels: int) -> NodeContext:
    context.files.max_pixels = lambda: pixels
    return context


def test_sizes_follow_an_edge_in_the_aspect_ratio(context: NodeContext) -> None:
    wide = torch.zeros(1, 30, 60, 3)
    assert training_images.resize_images_by_longer_edge(context, images=wide, longer_edge=20).shape == (1, 10, 20, 3)
    assert training_images.resize_images_by_shorter_edge(context, images=wide, shorter_edge=20).shape == (1, 20, 40, 3)


def test_a_size_beyond_the_limit_and_one_of_no_pixel_are_refused(context: NodeContext) -> None:
    strip = torch.zeros(1, 4000, 1, 3)
    with pytest.raises(TooManyPixels, match="8192 x 32768000 pixels"):
        training_images.resize_images_by_shorter_edge(limited(context, 10**9), images=strip, shorter_edge=8192)
    with pytest.raises(ValueError, match="would become 0 x 20"):
        training_images.resize_images_by_longer_edge(limited(context, sys.maxsize), images=strip, longer_edge=20)


def test_a_crop_is_the_same_for_all_of_a_batch_and_by_seed(context: NodeContext) -> None:
    image = torch.rand(1, 40, 50, 3, generator=torch.Generator().manual_seed(1))
    batch = image.repeat(2, 1, 1, 1)
    first = training_images.random_crop_images(context, images=batch, width=10, height=12, seed=1)
    assert first.shape == (2, 12, 10, 3) and torch.equal(first[0], first[1])
    other = training_images.random_crop_images(context, images=batch, width=10, height=12, seed=2)
    assert not torch.equal(first, other)


def test_likeness_keeps_the_first_of_each_kind(context: NodeContext) -> None:
    ramp = torch.linspace(0, 1, 64)[None, :, None].expand(64, 64, 3)
    images = torch.stack([ramp, 1 - ramp, ramp * 0.9])
    kept = training_images.image_deduplication(context, images=[images], similarity_threshold=[0.95])
    assert [tuple(image.shape) for image in kept] == [(1, 64, 64, 3)] * 2
    assert torch.equal(kept[0][0], ramp)
    assert len(training_images.image_deduplication(context, images=[images], similarity_threshold=[0.0])) == 1


def test_a_grid_has_rows_for_all_and_a_largest_size(context: NodeContext) -> None:
    sizes = {"columns": [2], "cell_width": [32], "cell_height": [40], "padding": [3]}
    made = training_images.image_grid(context, images=[torch.ones(3, 8, 8, 3)], **sizes)
    assert made.shape == (1, 83, 67, 3)
    assert made[0, :40, :32].min() == 1 and made[0, 43:, 35:].max() == 0  # the fourth cell is empty
    with pytest.raises(TooManyPixels, match="67 x 83 pixels"):
        training_images.image_grid(limited(context, 5000), images=[torch.ones(3, 8, 8, 3)], **sizes)
    with pytest.raises(ValueError, match="none for a grid"):
        training_images.image_grid(context, images=[], **sizes)
