"""Levels, numbers of tokens and blocks in which attention is sparse."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.diffusion.sparse_schedule import SparseSchedule, block_ranges


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("", []),
        ("0, 1, 47-49", [0, 1, 47, 48, 49]),
        ("5 - 3; 9", [3, 4, 5, 9]),
        ("none", []),
    ],
)
def test_blocks_are_named_by_numbers_and_ranges(text: str, blocks: list[int]) -> None:
    assert [number for found in block_ranges(text) for number in found] == blocks


def test_a_range_of_any_size_is_read_at_once() -> None:
    (found,) = block_ranges("0-" + "9" * 10_000)
    assert 10**5 in found


@pytest.mark.parametrize(
    ("sigma", "num_tokens", "block", "is_sparse"),
    [
        (0.5, 100, 3, True),
        (0.9, 100, 3, False),
        (0.1, 100, 3, False),
        (0.5, 99, 3, False),
        (0.5, 100, 4, False),
        (0.5, 100, None, True),
    ],
)
def test_levels_tokens_and_blocks_say_where(sigma: float, num_tokens: int, block: int | None, is_sparse: bool) -> None:
    schedule = SparseSchedule(0.8, 0.2, 100, block_ranges("4-5"))
    assert schedule.is_sparse({"sigmas": torch.tensor([sigma])}, num_tokens, block) is is_sparse
