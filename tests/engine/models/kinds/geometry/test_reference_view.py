"""Choice and order of the view that others refer to."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.models.kinds.geometry.reference_view import in_first_place, in_old_place, reference_view


def tokens() -> torch.Tensor:
    """Four views: two are alike, one is a little apart, one is far from all."""
    return torch.tensor([[[1.0, 0.0, 0.1], [0.9, 0.1, 0.1], [0.5, 0.5, 0.1], [-1.0, 0.2, 0.3]]])


@pytest.mark.parametrize(
    ("strategy", "chosen"), [("first", 0), ("middle", 2), ("saddle_balanced", 1), ("saddle_sim_range", 0)]
)
def test_each_strategy_chooses_its_view(strategy: str, chosen: int) -> None:
    assert reference_view(tokens(), strategy).tolist() == [chosen]


def test_the_chosen_view_comes_first_and_goes_back() -> None:
    views = torch.arange(10).view(2, 5)
    chosen = torch.tensor([3, 0])
    moved = in_first_place(views, chosen)
    assert moved.tolist() == [[3, 0, 1, 2, 4], [5, 6, 7, 8, 9]]
    torch.testing.assert_close(in_old_place(moved, chosen), views)
