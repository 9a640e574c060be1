"""Images split into tiles and merged again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.images.tiles import tiles_of
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.library.image import tiles as nodes
from tests.engine.nodes.small_store import node_context, small_store


@pytest.fixture
def context(tmp_path: Path) -> NodeContext:
    return node_context(small_store(tmp_path), tmp_path)


def merge(context: NodeContext, tiles: list[torch.Tensor], width: int, height: int, overlap: int) -> torch.Tensor:
    listed: Any = [[width], [height], [overlap]]
    given: Any = tiles
    merged: torch.Tensor = nodes.image_merge_tile_list(
        context, image_list=given, final_width=listed[0], final_height=listed[1], overlap=listed[2]
    )
    return merged


@pytest.mark.parametrize("overlap", [0, 24])
def test_merged_tiles_are_the_image(context: NodeContext, overlap: int) -> None:
    image = torch.rand(2, 150, 210, 3, generator=torch.Generator().manual_seed(1))
    tiles: Any = nodes.split_image_to_tile_list(context, image=image, tile_width=80, tile_height=64, overlap=overlap)
    assert all(tile.shape == (2, 64, 80, 3) for tile in tiles)
    assert (merge(context, tiles, 210, 150, overlap) - image).abs().max() < 1e-6


def test_tiles_move_on_by_a_quarter_of_themselves_at_least() -> None:
    assert len(tiles_of(1000, 64, 64, 64, 4096)) <= 1000 // 16 + 1


@pytest.mark.parametrize("size", [2, 0, -3])
def test_tiles_that_do_not_move_on_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"too small for the overlap; got {size} pixels, expected at least 3"):
        tiles_of(100, 64, 64, size, 32)


def test_a_small_image_is_one_tile() -> None:
    assert tiles_of(30, 20, 64, 64, 8) == [(0, 0, 30, 20)]


def test_missing_tiles_stay_black(context: NodeContext) -> None:
    merged = merge(context, [torch.ones(1, 64, 64, 3)], 128, 64, 0)
    assert merged[0, :, :64].min() == 1.0 and merged[0, :, 64:].max() == 0.0


def test_an_image_that_memory_does_not_hold_is_refused(context: NodeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context.files, "free_bytes", lambda: 1000)
    with pytest.raises(ValueError, match="final_width and final_height: too large for the free memory"):
        merge(context, [torch.ones(1, 64, 64, 3)], 64, 64, 0)
