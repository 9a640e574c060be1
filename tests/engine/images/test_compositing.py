"""Porter and Duff's modes against their table, and images of unequal sizes, channels and batches."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.images.compositing import PORTER_DUFF_MODES, porter_duff, repeated, same_channels


def composed(mode: str, source_alpha: float, alpha: float) -> tuple[float, float]:
    """A source of 0.8 over a destination of 0.2, with these opacities."""
    image, opacity = porter_duff(
        torch.full((1, 1, 3), 0.8), torch.full((1, 1, 1), source_alpha), torch.full((1, 1, 3), 0.2),
        torch.full((1, 1, 1), alpha), mode,
    )  # fmt: skip
    return float(image[0, 0, 0]), float(opacity[0, 0, 0])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("ADD", (0.5, 1.0)), ("CLEAR", (0.0, 0.0)), ("DARKEN", (0.8 / 3 + 0.2, 0.75)), ("DST", (0.2, 0.5)),
        ("DST_ATOP", (0.5, 0.5)), ("DST_IN", (0.2, 0.25)), ("DST_OUT", (0.2, 0.25)), ("DST_OVER", (0.4, 0.75)),
        ("LIGHTEN", (0.65 / 0.75, 0.75)), ("MULTIPLY", (0.16, 0.25)), ("OVERLAY", (0.08 / 0.75, 0.75)),
        ("SCREEN", (0.46 / 0.75, 0.75)), ("SRC", (0.8, 0.5)), ("SRC_ATOP", (0.5, 0.5)), ("SRC_IN", (0.8, 0.25)),
        ("SRC_OUT", (0.8, 0.25)), ("SRC_OVER", (0.6, 0.75)), ("XOR", (0.5, 0.5)),
    ],
)  # fmt: skip
def test_half_opaque_images_are_composed_as_the_table_says(mode: str, expected: tuple[float, float]) -> None:
    assert composed(mode, 0.5, 0.5) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("mode", PORTER_DUFF_MODES)
def test_nothing_over_nothing_is_nothing(mode: str) -> None:
    assert composed(mode, 0.0, 0.0) == (0.0, 0.0)


def test_an_opaque_source_hides_the_destination() -> None:
    assert composed("SRC_OVER", 1.0, 1.0) == pytest.approx((0.8, 1.0))


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="SRC_OVER"):
        composed("PLUS", 1.0, 1.0)


def test_a_batch_is_cut_or_repeated_from_its_start() -> None:
    items = torch.arange(3.0)
    assert repeated(items, 2).tolist() == [0, 1]
    assert repeated(items, 5).tolist() == [0, 1, 2, 0, 1]


def test_a_source_gets_the_destinations_channels() -> None:
    rgb, rgba = torch.zeros(1, 2, 2, 3), torch.zeros(1, 2, 2, 4)
    assert same_channels(rgb, rgba)[1].shape[-1] == 3
    assert same_channels(rgba, rgb)[1][..., 3].min() == 1.0
