"""Depth and confidence as images."""

from __future__ import annotations

import torch

from darkroom.engine.images.depth_images import (
    percentile_depth,
    quantiles,
    scaled_confidence,
    spanning_depth,
    with_far_sky,
)
from darkroom.engine.images.turbo import turbo


def test_near_is_white_and_far_is_black() -> None:
    depth = torch.linspace(1, 5, 10_000).view(100, 100)
    shown = percentile_depth(depth, None)
    assert shown[0, 0] == 1 and shown[-1, -1] == 0
    torch.testing.assert_close(shown[50, 0], torch.tensor(0.5), atol=0.01, rtol=0)
    torch.testing.assert_close(spanning_depth(torch.stack((depth, depth * 3)))[1], spanning_depth(depth[None])[0])


def test_the_sky_is_black_and_does_not_count() -> None:
    depth, sky = torch.linspace(1, 2, 400).view(20, 20), torch.zeros(20, 20)
    sky[:5] = 1
    depth[:5] = 1000
    shown = percentile_depth(depth, sky)
    assert shown[:5].eq(0).all() and shown[5, 0] == 1
    assert with_far_sky(depth, sky)[0, 0] < 2
    assert percentile_depth(depth, torch.ones(20, 20)).eq(0).all()


def test_a_sky_of_few_pixels_keeps_its_depth() -> None:
    depth, sky = torch.full((20, 20), 3.0), torch.zeros(20, 20)
    sky[0, :10], depth[0, :10] = 1, 9
    assert with_far_sky(depth, sky)[0, 0] == 9


def test_quantiles_are_torchs() -> None:
    values = torch.randn(1001, generator=torch.Generator().manual_seed(0))
    shares = (0.0, 0.01, 0.5, 0.99, 1.0)
    torch.testing.assert_close(torch.tensor(quantiles(values, *shares)), torch.quantile(values, torch.tensor(shares)))


def test_confidence_spans_each_image_and_is_full_where_it_is_even() -> None:
    scaled = scaled_confidence(torch.tensor([[[1.0, 3.0]], [[2.0, 2.0]]]))
    assert scaled.tolist() == [[[0.0, 1.0]], [[1.0, 1.0]]]


def test_turbo_goes_from_blue_over_green_to_red() -> None:
    low, middle, high = turbo(torch.tensor((0.1, 0.5, 0.9)))
    assert low.argmax() == 2 and middle.argmax() == 1 and high.argmax() == 0
    assert torch.equal(turbo(torch.tensor(-1.0)), turbo(torch.tensor(0.0)))
