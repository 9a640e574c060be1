"""Smoothing of seams: which passes there are at a noise level, how they become one, and where nothing changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.families.hidream_o1.seams import LEVELS, PATTERNS, SeamSmoothing, inside_borders, window_of


def smoothing(
    passes: str = "2", blend: str = "average", pattern: str = "single_shift", **given: float
) -> SeamSmoothing:
    shifts = [PATTERNS[pattern][count] for count in LEVELS[passes]]
    return SeamSmoothing(shifts, blend, given.get("strength", 1.0), highest=0.8, lowest=0.2)


def wrapped(made: SeamSmoothing, sigma: float, side: int = 128) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the output for a network that returns a numbered constant, and what it was called with."""
    seen: list[torch.Tensor] = []

    def network(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(x)
        return torch.full_like(x, float(len(seen)))

    x = torch.zeros(1, 3, side, side)
    x[..., 0, 0] = 1.0
    output = made.wrap(network, x, None, None, None, None, {"sigmas": torch.tensor([sigma])})
    return output, seen


@pytest.mark.parametrize("sigma", [0.81, 0.19])
def test_other_noise_levels_are_left_alone(sigma: float) -> None:
    output, seen = wrapped(smoothing(), sigma)
    assert len(seen) == 1 and torch.equal(output, torch.ones_like(output))


def test_the_middle_is_the_mean_and_the_borders_are_the_network_s() -> None:
    output, seen = wrapped(smoothing(strength=0.5), 0.5)
    assert len(seen) == 2 and seen[1][..., 16, 16].eq(1).all()
    assert output[..., 64, 64].eq(1.25).all() and output[..., 32, 64].eq(1).all() and output[..., 3, 64].eq(1).all()


@pytest.mark.parametrize(("sigma", "calls"), [(0.79, 2), (0.5, 4), (0.21, 8)])
def test_passes_grow_towards_the_end(sigma: float, calls: int) -> None:
    _, seen = wrapped(smoothing("ramp_2_4_8"), sigma)
    assert len(seen) == calls


def test_an_image_off_the_grid_alone_is_evaluated_once_more() -> None:
    output, seen = wrapped(smoothing(pattern="symmetric", blend="median"), 0.5)
    assert len(seen) == 3 and output[..., 64, 64].eq(2).all()  # the lower of two, not the plain one


def test_a_window_is_highest_in_the_middle_of_shifted_patches() -> None:
    plain, shifted = (window_of(shift, torch.device("cpu")) for shift in ((0, 0), (16, 16)))
    assert plain[16, 16] == 1 and plain[0, 0] == 0
    assert shifted[0, 0] == 1 and shifted[16, 16] == 0


def test_windows_share_each_pixel() -> None:
    output, _ = wrapped(smoothing(blend="window"), 0.5)
    middle, between = output[0, 0, 48, 48], output[0, 0, 64, 64]  # of a patch, of a shifted one
    assert middle == pytest.approx(1.0, abs=1e-4) and between == pytest.approx(2.0, abs=1e-4)


def test_a_mask_fades_behind_the_first_patch() -> None:
    mask = inside_borders(128, 96, torch.device("cpu"))
    assert mask[64, [32, 33, 36, 48, 63, 64]].tolist() == [0, 0.25, 1, 1, 0, 0]
