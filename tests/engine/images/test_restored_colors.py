"""Colours of a restored frame brought to those of its original, and detail kept."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.images.restored_colors import METHODS, lab_transfer, mean_transfer, wavelet_transfer


def frame(seed: int, height: int = 48, width: int = 64) -> torch.Tensor:
    """A frame of smooth colours, -0.8..0.8."""
    small = torch.rand(1, 3, 4, 5, generator=torch.Generator().manual_seed(seed)) * 1.6 - 0.8
    return torch.nn.functional.interpolate(small, (height, width), mode="bicubic").clamp_(-0.8, 0.8)[0]


@pytest.mark.parametrize("method", METHODS)
def test_a_frame_of_its_own_colours_stays(method: str) -> None:
    own = frame(0)
    torch.testing.assert_close(METHODS[method](own.clone(), own), own, rtol=0, atol=2e-4)


@pytest.mark.parametrize("method", METHODS)
def test_a_tint_over_the_whole_frame_is_taken_away(method: str) -> None:
    original = frame(1)
    tinted = original + torch.tensor([0.2, -0.1, 0.05])[:, None, None]
    corrected = METHODS[method](tinted.clone(), original)
    assert (corrected - original).abs().mean() < 0.2 * (tinted - original).abs().mean()
    assert corrected.min() >= -1 and corrected.max() <= 1


@pytest.mark.parametrize("method", METHODS)
def test_neither_frame_is_changed(method: str) -> None:
    pair = frame(2), frame(3)
    METHODS[method](*pair)
    assert torch.equal(pair[0], frame(2)) and torch.equal(pair[1], frame(3))


def test_fine_detail_of_the_frame_stays_where_colours_come_from_the_original() -> None:
    checks = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).repeat(24, 32) * 0.1
    kept = wavelet_transfer(frame(4) + checks, frame(5)) - wavelet_transfer(frame(4), frame(5))
    inner = (slice(None), slice(8, -8), slice(8, -8))
    torch.testing.assert_close(kept[inner], checks.expand(3, -1, -1)[inner], rtol=0, atol=0.01)


def test_mean_and_deviation_become_those_of_the_original() -> None:
    made, original = mean_transfer(frame(6) * 0.5, frame(7) * 0.5), frame(7) * 0.5
    torch.testing.assert_close(made.mean(dim=(1, 2)), original.mean(dim=(1, 2)), rtol=0, atol=1e-4)
    torch.testing.assert_close(made.std(dim=(1, 2)), original.std(dim=(1, 2)), rtol=1e-2, atol=1e-3)


def test_grey_frames_stay_grey_and_one_colour_is_no_division_by_zero() -> None:
    grey = frame(8)[:1].expand(3, -1, -1)
    made = lab_transfer(frame(9), grey)
    assert (made.amax(dim=0) - made.amin(dim=0)).max() < 0.01
    plain = torch.full((3, 48, 64), 0.25)
    for method in METHODS.values():
        assert torch.isfinite(method(plain.clone(), frame(10))).all()


def test_small_frames_are_blurred_by_less() -> None:
    for method in METHODS.values():
        assert method(frame(11, 2, 3), frame(12, 2, 3)).shape == (3, 2, 3)
