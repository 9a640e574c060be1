"""The nodes that add, mix and interpolate latents, unequal sizes and zeros included."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.nodes.library.latent import latent_arithmetic as nodes
from darkroom.engine.nodes.sockets import Latent

context: Any = None


def latent(value: float, batch: int = 1, size: int = 8) -> Latent:
    return {"samples": torch.full((batch, 4, size, size), value)}


def test_the_second_takes_the_size_and_batch_of_the_first() -> None:
    first, second = latent(3.0, batch=3), latent(1.0, batch=2, size=12)
    assert torch.equal(nodes.latent_add(context, samples1=first, samples2=second)["samples"], first["samples"] + 1)
    difference = nodes.latent_subtract(context, samples1=first, samples2=second)["samples"]
    assert torch.equal(difference, first["samples"] - 1)
    assert set(first["samples"].flatten().tolist()) == {3.0}


def test_a_product_has_a_sign() -> None:
    assert nodes.latent_multiply(context, samples=latent(3.0), multiplier=-0.5)["samples"].unique().tolist() == [-1.5]


@pytest.mark.parametrize(("ratio", "expected"), [(1.0, 3.0), (0.0, 1.0), (0.25, 1.5)])
def test_interpolation_of_one_direction_mixes_lengths(ratio: float, expected: float) -> None:
    mixed = nodes.latent_interpolate(context, samples1=latent(3.0), samples2=latent(1.0), ratio=ratio)["samples"]
    assert torch.allclose(mixed, torch.tensor(expected))


def test_interpolation_between_two_directions_keeps_the_length() -> None:
    first, second = torch.zeros(1, 4, 1, 1), torch.zeros(1, 4, 1, 1)
    first[0, 0], second[0, 1] = 2.0, 2.0
    mixed = nodes.latent_interpolate(context, samples1={"samples": first}, samples2={"samples": second}, ratio=0.5)
    assert mixed["samples"].norm() == pytest.approx(2.0)
    assert mixed["samples"][0, 0] == mixed["samples"][0, 1]


def test_a_latent_of_zeros_has_no_direction_and_makes_no_nan() -> None:
    mixed = nodes.latent_interpolate(context, samples1=latent(0.0), samples2=latent(0.0), ratio=0.5)["samples"]
    assert mixed.abs().max() == 0.0


def test_a_blend_of_1_is_the_first_latent() -> None:
    first, second = latent(3.0), latent(1.0, size=12)
    assert torch.equal(
        nodes.latent_blend(context, samples1=first, samples2=second, blend_factor=1.0)["samples"], first["samples"]
    )
    half = nodes.latent_blend(context, samples1=first, samples2=second, blend_factor=0.5)["samples"]
    assert torch.allclose(half, torch.tensor(2.0))
