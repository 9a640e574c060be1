"""Splats joined and moved."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from darkroom.engine.media.rotations import euler_xyz, matrices_of, quaternions_of
from darkroom.engine.media.splats.splat import ATTRIBUTES, Splat, merged, transformed
from tests.engine.media.splats.test_files import cloud


def covariances(splat: Splat) -> torch.Tensor:
    axes = matrices_of(splat.rotations) * splat.scales[..., None, :]
    return axes @ axes.transpose(-1, -2)


@pytest.mark.parametrize("scales", [(2.0, 2.0, 2.0), (0.5, 1.0, 3.0)])
def test_a_transformed_splat_has_the_transformed_shape(scales: tuple[float, float, float]) -> None:
    made, factors, move = cloud(), torch.tensor(scales), torch.tensor([1.0, 2.0, 3.0])
    turn = euler_xyz(10.0, 20.0, 30.0)
    found = transformed(made, move, turn, factors)
    matrix = factors[:, None] * matrices_of(turn)
    assert (found.positions - (made.positions @ matrix.T + move)).abs().max() < 1e-5
    assert (covariances(found) - matrix @ covariances(made) @ matrix.T).abs().max() < 1e-5


def test_rotations_are_about_x_then_y_then_z() -> None:
    turned = matrices_of(euler_xyz(90.0, 0.0, 90.0)) @ torch.tensor([0.0, 1.0, 0.0])
    assert turned.tolist() == pytest.approx([0.0, 0.0, 1.0], abs=1e-6)
    half = math.sqrt(0.5)
    assert quaternions_of(matrices_of(torch.tensor([half, 0.0, half, 0.0]))).tolist() == pytest.approx(
        [half, 0, half, 0]
    )


def test_splats_are_joined_item_by_item_with_the_harmonics_of_the_richest() -> None:
    first, second = cloud(5, 1), cloud(7, 4)
    joined = merged([first, second])
    assert joined.numbers() == [12] and joined.sh.shape == (1, 12, 4, 3)
    assert torch.equal(joined.positions[0, 5:], second.positions[0]) and joined.sh[0, :5, 1:].abs().max() == 0


def test_padded_items_keep_their_numbers() -> None:
    made = cloud(6)
    values = (torch.cat((getattr(made, name),) * 2) for name in ATTRIBUTES)
    wide = replace(Splat(*values), counts=torch.tensor([2, 6]))
    joined = merged([wide, wide])
    assert joined.numbers() == [4, 12] and len(joined.item(0).positions) == 4


def test_batches_of_different_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="splats: batches of different sizes; got 1, 2"):
        double = Splat(*(torch.cat((value, value)) for value in (getattr(cloud(), name) for name in ATTRIBUTES)))
        merged([cloud(), double])
