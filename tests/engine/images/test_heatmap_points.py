"""Points of heatmaps, between their cells."""

from __future__ import annotations

import torch

from darkroom.engine.images.heatmap_points import heatmap_points

HEIGHT, WIDTH = 24, 32


def bells(*middles: tuple[float, float], height: float = 1.0) -> torch.Tensor:
    """Heatmaps with the top of a bell curve of sigma 2 at each x and y."""
    y, x = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    return torch.stack([height * torch.exp(-((x - left) ** 2 + (y - top) ** 2) / 8) for left, top in middles])


def test_a_point_is_at_the_top_of_a_bell_curve_between_cells() -> None:
    middles = ((12.0, 11.0), (15.3, 9.8), (17.45, 14.4))
    found = heatmap_points(bells(*middles))
    assert torch.allclose(torch.from_numpy(found.places), torch.tensor(middles), atol=0.02)
    assert (abs(found.scores - 1) < 0.05).all()


def test_a_heatmap_without_a_positive_cell_has_no_point() -> None:
    found = heatmap_points(torch.cat((bells((12.0, 11.0)), -bells((3.0, 4.0)), torch.zeros(1, HEIGHT, WIDTH))))
    assert found.places[1:].tolist() == [[-1, -1], [-1, -1]]
    assert found.places[0].min() > 10


def test_a_point_in_a_corner_stays_there_and_one_of_an_even_heatmap_within_a_cell() -> None:
    heatmaps = torch.zeros(2, HEIGHT, WIDTH)
    heatmaps[0, 0, 0] = 1e-3
    heatmaps[1] = 60.0
    corner, even = heatmap_points(heatmaps).places
    assert corner.tolist() == [0, 0] and abs(even).max() < 1
