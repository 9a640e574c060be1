"""Cutting an image into overlapping tiles and blending them again."""

from __future__ import annotations

import torch

from darkroom.engine.layers.tiles import AxisScale, even_scale, num_tiles, run_in_tiles, tile_places


def test_tiles_cover_the_image_and_overlap() -> None:
    assert tile_places((10, 4), (6, 8), 2) == [((0, 6), (0, 4)), ((4, 6), (0, 4))]


def test_a_function_of_single_cells_is_the_same_in_tiles() -> None:
    samples = torch.randn(2, 4, 21, 13, generator=torch.manual_seed(0))
    calls: list[None] = []
    doubled = run_in_tiles(
        samples, lambda tile: tile * 2, tile=(8, 6), overlap=3, scale=1, out_channels=4,
        on_tile=lambda: calls.append(None),
    )  # fmt: skip
    assert torch.allclose(doubled, samples * 2, atol=1e-6)
    assert len(calls) == num_tiles(samples, (8, 6), 3)


def test_tiles_grow_and_shrink() -> None:
    samples = torch.ones(1, 4, 12, 16)

    def grow(tile: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(tile[:, :3], scale_factor=8.0)

    def shrink(tile: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(tile, 4)

    assert run_in_tiles(samples, grow, tile=(8, 8), overlap=2, scale=8, out_channels=3).shape == (1, 3, 96, 128)
    small = run_in_tiles(samples, shrink, tile=(8, 8), overlap=4, scale=0.25, out_channels=4)
    assert torch.allclose(small, torch.ones(1, 4, 3, 4))


def test_an_image_within_one_tile_is_one_call() -> None:
    samples = torch.randn(1, 4, 5, 5)
    assert torch.equal(run_in_tiles(samples, lambda t: t, tile=(8, 8), overlap=2, scale=1, out_channels=4), samples)


def test_what_tiles_have_behind_the_end_is_left_out() -> None:
    samples = torch.arange(10.0).view(1, 1, 5, 2)
    longer = AxisScale(lambda length: 2 * length - 1, lambda start: 2 * start)
    found = run_in_tiles(
        samples, lambda tile: tile.repeat_interleave(2, dim=2), tile=(3, 2), overlap=1, scale=(longer, even_scale(1)),
        out_channels=1,
    )  # fmt: skip
    assert torch.equal(found, samples.repeat_interleave(2, dim=2)[:, :, :9])
