"""Canny edges: thin, and joined by hysteresis."""

from __future__ import annotations

import torch

from darkroom.engine.images.canny import canny


def step(height: float, dim: int) -> torch.Tensor:
    """An image [1, 3, 24, 24] that is `height` in its second half."""
    image = torch.zeros(1, 3, 24, 24)
    image.narrow(dim, 12, 12).fill_(height)
    return image


def test_a_step_gives_a_line_of_at_most_two_pixels() -> None:
    for dim in (2, 3):
        edges = canny(step(1.0, dim), 0.1, 0.3)
        assert edges.shape == (1, 1, 24, 24)
        across = edges[0, 0].sum(dim=dim - 2)
        assert across[4:20].min() >= 1
        assert across.max() <= 2


def test_a_weak_edge_shows_only_where_it_is_connected_with_a_strong_one() -> None:
    weak = step(0.1, 3)  # a gradient of about 0.3
    assert canny(weak, 0.1, 0.9).max() == 0.0
    growing = step(1.0, 3) * torch.linspace(1.0, 0.1, 24).reshape(1, 1, 24, 1)
    assert canny(growing, 0.1, 0.9)[0, 0, 20].max() == 1.0


def test_grey_images_and_alpha_are_taken_too() -> None:
    image = step(1.0, 3)
    expected = canny(image, 0.1, 0.3)
    assert torch.equal(canny(image[:, :1], 0.1, 0.3), expected)
    with_alpha = torch.cat((image, torch.rand(1, 1, 24, 24)), dim=1)
    assert torch.equal(canny(with_alpha, 0.1, 0.3), expected)
