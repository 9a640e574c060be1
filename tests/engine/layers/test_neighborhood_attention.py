"""Attention to neighbors: the same as attention of each cell to its own window."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from darkroom.engine.layers.neighborhood_attention import neighborhood_attention, window_starts


@pytest.mark.parametrize(
    ("sizes", "window"),
    [
        ((3, 10, 9), (3, 5, 3)),
        ((1, 4, 20), (3, 7, 7)),
        ((9, 2, 2), (5, 1, 3)),
        ((2, 3, 3), (1, 1, 1)),
    ],
)
def test_each_cell_reads_its_window(sizes: tuple[int, int, int], window: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, *sizes, 2, 4)
    found = neighborhood_attention(q, k, v, window)
    for cell in itertools.product(*(range(0, size, 2) for size in sizes)):
        seen = []
        for at, size, wanted in zip(cell, sizes, window, strict=True):
            length = min(wanted, size)
            first = min(max(at - length // 2, 0), size - length)
            seen.append(slice(first, first + length))
        place: tuple[Any, ...] = (slice(None), *cell)
        own: tuple[Any, ...] = (slice(None), *seen)
        expected = scaled_dot_product_attention(
            q[place][:, :, None], *(item[own].flatten(1, 3).transpose(1, 2) for item in (k, v))
        )[:, :, 0]
        torch.testing.assert_close(found[place], expected, rtol=1e-4, atol=1e-5)


def test_windows_stay_inside() -> None:
    assert window_starts(6, 3, torch.device("cpu")).tolist() == [0, 0, 1, 2, 3, 3]
    assert window_starts(2, 2, torch.device("cpu")).tolist() == [0, 0]
