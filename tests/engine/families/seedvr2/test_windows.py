"""The windows of a video's tokens: each token is in one, at the position that it has within it."""

from __future__ import annotations

import math

import pytest
import torch

from darkroom.engine.families.seedvr2.windows import (
    KINDS,
    Grid,
    WindowedTokens,
    spans,
    window_lengths,
    windowed_tokens,
)

GRIDS: tuple[Grid, ...] = ((1, 4, 6), (3, 10, 7), (9, 45, 80), (33, 12, 12), (1, 90, 160))
every_grid = pytest.mark.parametrize("grid", GRIDS)


def windows(tokens: WindowedTokens, kind: int) -> list[torch.Tensor]:
    """Return the indices of the tokens of each window."""
    lengths = [length for count, length in tokens.sizes[kind] for _ in range(count)]
    return list(torch.split(tokens.order[0, kind], lengths))


def test_an_image_of_the_reference_size_has_three_windows_a_side() -> None:
    assert window_lengths((1, 45, 80)) == (1, 15, 27)
    assert window_lengths((1, 90, 160)) == (1, 15, 27)  # windows do not grow with the image


@pytest.mark.parametrize(("frames", "length"), [(1, 1), (4, 1), (5, 2), (30, 8), (31, 8), (300, 8)])
def test_a_window_has_a_quarter_of_the_frames_up_to_thirty(frames: int, length: int) -> None:
    assert window_lengths((frames, 45, 80))[0] == length


def test_plain_windows_begin_at_multiples_and_shifted_ones_with_a_half() -> None:
    assert spans(10, 4, is_shifted=False) == [(0, 4), (4, 8), (8, 10)]
    assert spans(10, 4, is_shifted=True) == [(0, 2), (2, 6), (6, 10)]
    assert spans(10, 5, is_shifted=True) == [(0, 2), (2, 7), (7, 10)]
    assert spans(4, 4, is_shifted=True) == [(0, 4)]  # one window is not shifted


@every_grid
def test_every_token_is_in_one_window(grid: Grid) -> None:
    tokens = windowed_tokens(grid, is_relative=False)
    every = torch.arange(math.prod(grid))
    for kind in range(KINDS):
        assert torch.equal(tokens.order[0, kind].sort().values, every)
        assert torch.equal(tokens.order[0, kind][tokens.places[0, kind]], every)
        assert sum(count * length for count, length in tokens.sizes[kind]) == len(every)


@every_grid
def test_a_window_is_a_box_and_its_positions_begin_at_its_corner(grid: Grid) -> None:
    tokens = windowed_tokens(grid, is_relative=False)
    cells = torch.stack(torch.unravel_index(torch.arange(math.prod(grid)), grid), dim=-1)  # [T, 3]
    for kind in range(KINDS):
        start = 0
        for window in windows(tokens, kind):
            own = cells[window]
            sides = own.amax(dim=0) - own.amin(dim=0) + 1
            assert int(sides.prod()) == len(window)
            assert torch.equal(tokens.positions[0, kind, start : start + len(window)], (own - own.amin(dim=0)).float())
            start += len(window)


def test_relative_positions_reach_from_one_end_of_a_window_to_the_other() -> None:
    tokens = windowed_tokens((9, 45, 80), is_relative=True)
    (count, length), *_ = tokens.sizes[0]
    first = tokens.positions[0, 0, :length]
    assert count > 1 and torch.equal(first.amin(dim=0), torch.full((3,), -1.0))
    assert torch.equal(first.amax(dim=0), torch.ones(3))


def test_the_numbers_of_windows_grow_with_the_video_and_their_sizes_do_not() -> None:
    short, long = (windowed_tokens((frames, 45, 80), is_relative=False) for frames in (32, 128))
    for kind in range(KINDS):
        assert max(length for _, length in long.sizes[kind]) == max(length for _, length in short.sizes[kind])
        assert len(long.sizes[kind]) <= len(short.sizes[kind]) + 8  # shapes, each of which is one call of attention
