"""Panoramas: places and directions, views of them, and distances joined of views."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from darkroom.engine.errors import Interrupted
from darkroom.engine.images.panorama import directions_of, grid, icosahedron_views, places_of, seen_at, view_of
from darkroom.engine.images.panorama_distance import curvature, downwards, joined_distance, to_the_right


def test_places_and_directions_undo_one_another() -> None:
    places = grid(9, 17)
    directions = directions_of(places)
    torch.testing.assert_close(directions.norm(dim=-1), torch.ones(9, 17))
    torch.testing.assert_close(places_of(directions * 3), places, atol=1e-5, rtol=0)
    assert directions[0, 0, 2] > 0.9 and directions[-1, 0, 2] < -0.9


def test_twelve_level_views_show_every_direction() -> None:
    rotations = icosahedron_views().rotations
    torch.testing.assert_close(rotations @ rotations.mT, torch.eye(3).expand(12, 3, 3), atol=1e-6, rtol=0)
    torch.testing.assert_close(rotations[:, 0, 2], torch.zeros(12))
    shown = torch.stack([seen_at(directions_of(grid(20, 40)), rotation)[1] for rotation in rotations])
    assert shown.any(dim=0).all()


def test_a_view_shows_what_is_ahead_in_its_middle() -> None:
    panorama = directions_of(grid(200, 400)).movedim(-1, 0)
    for rotation in icosahedron_views().rotations:
        view = view_of(panorama, rotation, 21)
        torch.testing.assert_close(view[:, 10, 10], rotation[2], atol=0.02, rtol=0)
        assert (view[:, 10, 20] - view[:, 10, 0]) @ rotation[0] > 1.3


def true_distance(directions: torch.Tensor) -> torch.Tensor:
    return 2 + directions[..., 0] * 0.5 + directions[..., 2] ** 2


def test_distances_of_views_with_other_scales_are_joined() -> None:
    views, side = icosahedron_views(), 48
    places = 2 * grid(side, side) - 1
    ahead = torch.nn.functional.normalize(torch.cat((places, torch.ones(side, side, 1)), dim=-1), dim=-1)
    scales = torch.linspace(0.5, 2.0, 12)
    distances = [
        (true_distance(ahead @ rotation) * scale).numpy()
        for rotation, scale in zip(views.rotations, scales, strict=True)
    ]
    masks = [np.ones((side, side), dtype=bool)] * 12
    found, is_seen = joined_distance((150, 300), views, distances, masks)
    assert found.shape == (150, 300) and is_seen.all()
    ratio = found / true_distance(directions_of(grid(150, 300)))
    assert float(ratio.std() / ratio.mean()) < 0.03


def test_pixels_that_no_view_has_are_not_seen() -> None:
    masks = [np.zeros((16, 16), dtype=bool)] * 11 + [np.ones((16, 16), dtype=bool)]
    _, is_seen = joined_distance((32, 64), icosahedron_views(), [np.ones((16, 16), np.float32)] * 12, masks)
    assert 0 < int(is_seen.sum()) < is_seen.numel() / 4


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_distances_that_are_no_numbers_are_not_seen(value: float) -> None:
    calls = []
    distances = [np.ones((16, 16), np.float32) for _ in range(12)]
    distances[3][4:9] = value
    masks = [np.ones((16, 16), dtype=bool)] * 12
    found, _ = joined_distance((32, 64), icosahedron_views(), distances, masks, lambda: calls.append(1))
    assert found.isfinite().all() and len(calls) < 1000


def test_joining_ends_when_the_run_is_cancelled() -> None:
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) > 15:
            raise Interrupted

    uneven = np.random.default_rng(0).uniform(1, 2, (12, 16, 16)).astype(np.float32)
    distances, masks = list(uneven), [np.ones((16, 16), dtype=bool)] * 12
    with pytest.raises(Interrupted):
        joined_distance((32, 64), icosahedron_views(), distances, masks, check)


def test_a_panorama_goes_on_at_its_sides_and_ends_above_and_below() -> None:
    image = np.arange(6.0).reshape(2, 3)
    assert to_the_right(image).tolist() == [[-1, -1, 2], [-1, -1, 2]]
    assert downwards(image).tolist() == [[-3, -3, -3, -3]]
    assert curvature(image).tolist() == [[6, 3, 0], [0, -3, -6]]
