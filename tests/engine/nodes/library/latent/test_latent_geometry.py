"""The nodes that scale, turn, crop and cut latents, in pixels that become whole cells."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.nodes.library.latent import latent_geometry as nodes
from darkroom.engine.nodes.sockets import Latent

context: Any = None


def latent(height: int = 10, width: int = 12, batch: int = 1) -> Latent:
    samples = torch.arange(float(width)).expand(batch, 4, height, width).clone()
    return {"samples": samples, "batch_index": [7] * batch}


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [(0, 0, (10, 12)), (160, 0, (16, 20)), (0, 160, (20, 24)), (8, 8, (8, 8)), (200, 104, (13, 25))],
)
def test_an_upscaled_latent_has_the_size_that_is_asked_for(width: int, height: int, expected: tuple[int, int]) -> None:
    result = nodes.latent_upscale(
        context, samples=latent(), upscale_method="bislerp", width=width, height=height, crop="disabled"
    )
    assert result["samples"].shape[-2:] == expected
    assert result["batch_index"] == [7]


def test_scaling_by_a_factor_rounds_to_whole_cells() -> None:
    result = nodes.latent_upscale_by(context, samples=latent(10, 11), upscale_method="area", scale_by=1.26)
    assert result["samples"].shape[-2:] == (13, 14)


def test_quarter_turns_are_clockwise_and_flips_name_their_axis() -> None:
    samples = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).expand(1, 4, 2, 2)
    turned = nodes.latent_rotate(context, samples={"samples": samples}, rotation="90 degrees")["samples"]
    assert turned[0, 0].tolist() == [[3.0, 1.0], [4.0, 2.0]]
    flipped = nodes.latent_flip(context, samples={"samples": samples}, flip_method="x-axis: vertically")["samples"]
    assert flipped[0, 0].tolist() == [[3.0, 4.0], [1.0, 2.0]]


def test_a_crop_past_the_end_keeps_64_pixels() -> None:
    cropped = nodes.latent_crop(context, samples=latent(), width=64, height=64, x=160, y=160)["samples"]
    assert cropped.shape[-2:] == (8, 8)
    assert cropped[0, 0, 0].tolist() == [4, 5, 6, 7, 8, 9, 10, 11]


def test_with_a_minus_the_second_latent_comes_first() -> None:
    first, second = latent(), {"samples": torch.full((1, 4, 10, 2), -1.0)}
    right = nodes.latent_concat(context, samples1=first, samples2=second, dim="x")["samples"]
    left = nodes.latent_concat(context, samples1=first, samples2=second, dim="-x")["samples"]
    assert right.shape == left.shape == (1, 4, 10, 14)
    assert right[0, 0, 0, -1] == left[0, 0, 0, 0] == -1.0
    assert nodes.latent_concat(context, samples1=first, samples2=first, dim="t")["samples"].shape[1] == 8


@pytest.mark.parametrize(
    ("index", "amount", "expected"),
    [(2, 3, [2, 3, 4]), (11, 5, [11]), (40, 5, [11]), (-3, 2, [9, 10]), (-3, 9, [9, 10, 11]), (-40, 2, [0, 1])],
)
def test_a_cut_starts_where_the_index_says_and_ends_with_the_latent(
    index: int, amount: int, expected: list[int]
) -> None:
    cut = nodes.latent_cut(context, samples=latent(), dim="x", index=index, amount=amount)["samples"]
    assert cut[0, 0, 0].tolist() == expected
