"""Tiles that fade into each other: what they sum to, and how many there are."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.layers.faded_tiles import FadedSum, FadedTiling, run_in_faded_tiles


def video(rows: int = 11, columns: int = 14) -> torch.Tensor:
    return torch.randn(1, 2, 3, rows, columns, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shared", [(0, 0), (1, 2), (3, 3), (9, 9)])
def test_tiles_of_the_input_itself_sum_to_it(shared: tuple[int, int]) -> None:
    tiled = run_in_faded_tiles(video(), lambda part: part, FadedTiling((4, 5), shared))
    torch.testing.assert_close(tiled, video())


def test_tiles_that_become_larger_or_smaller_lie_where_they_belong() -> None:
    def twofold(part: torch.Tensor) -> torch.Tensor:
        return part.repeat_interleave(2, 3).repeat_interleave(2, 4)

    twice = run_in_faded_tiles(video(), twofold, FadedTiling((4, 4), (1, 1), enlarges=2))
    torch.testing.assert_close(twice, twofold(video()))
    halves = run_in_faded_tiles(video(12, 16), lambda part: part[..., ::2, ::2], FadedTiling((4, 4), (2, 2), reduces=2))
    torch.testing.assert_close(halves, video(12, 16)[..., ::2, ::2])


def test_an_input_of_one_tile_is_passed_as_it_is() -> None:
    seen: list[torch.Size] = []

    def note(part: torch.Tensor) -> torch.Tensor:
        seen.append(part.shape)
        return part

    run_in_faded_tiles(video(), note, FadedTiling((11, 14), (4, 4)))
    assert seen == [(1, 2, 3, 11, 14)]
    run_in_faded_tiles(video(), note, FadedTiling((11, 10), (4, 4)))
    assert len(seen) == 3 and seen[1][3:] == (11, 10)


def test_neighbours_fade_along_a_cosine() -> None:
    tiling, sides = FadedTiling((1, 6), (0, 4)), (1, 8)
    total = FadedSum(tiling, sides)
    first, second = tiling.places(sides)
    total.add(first, torch.zeros(1, 1, 1, 1, 6))
    total.add(second, torch.ones(1, 1, 1, 1, 6))
    row = total.result().flatten()
    assert row[:2].eq(0).all() and row[-2:].eq(1).all()
    assert (row.diff() >= 0).all() and 0 < row[4] < 1  # it rises, without a step


def test_a_sum_of_nothing_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="tiles: none was added"):
        FadedSum(FadedTiling((4, 4), (1, 1)), (8, 8)).result()
