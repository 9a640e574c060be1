"""The nodes that join, average and mark conditioning, and leave what they were given as it was."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from darkroom.engine.nodes.library.conditioning import conditioning as nodes

context: Any = None


def entry(num_tokens: int = 2, value: float = 1.0, **options: Any) -> list[list[Any]]:
    return [[torch.full((1, num_tokens, 3), value), {"pooled_output": torch.full((1, 3), value), **options}]]


def test_combined_entries_stand_side_by_side() -> None:
    first, second = entry(), entry(5)
    assert nodes.conditioning_combine(context, conditioning_1=first, conditioning_2=second) == [*first, *second]


@pytest.mark.parametrize("num_other", [1, 2, 4])
def test_an_average_keeps_the_length_of_the_first(num_other: int) -> None:
    averaged = nodes.conditioning_average(
        context, conditioning_to=entry(2, 1.0), conditioning_from=entry(num_other, 3.0), conditioning_to_strength=0.25
    )
    tokens, options = averaged[0]
    other = 3.0 if num_other > 1 else 0.0  # a shorter one is filled up with zeros
    assert tokens[0, :, 0].tolist() == [2.5, 0.25 + 0.75 * other]
    assert options["pooled_output"].tolist() == [[2.5, 2.5, 2.5]]


def test_only_the_first_of_several_sources_is_used_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        joined = nodes.conditioning_concat(
            context, conditioning_to=entry(2), conditioning_from=[*entry(3, 5.0), *entry(9)]
        )
    assert joined[0][0][0, :, 0].tolist() == [1.0, 1.0, 5.0, 5.0, 5.0]
    assert "2 entries" in caplog.text


def test_an_area_in_pixels_becomes_cells_and_one_in_shares_stays() -> None:
    place = {"conditioning": entry(), "strength": 0.5}
    area = nodes.conditioning_set_area(context, width=64, height=72, x=8, y=20, **place)[0][1]
    assert (area["area"], area["strength"], area["set_area_to_bounds"]) == ((9, 8, 2, 1), 0.5, False)
    shares = nodes.conditioning_set_area_percentage(context, width=0.5, height=0.25, x=0.1, y=0.2, **place)[0][1]
    assert shares["area"] == ("percentage", 0.25, 0.5, 0.2, 0.1)


def test_options_are_set_on_copies() -> None:
    given = entry()
    nodes.conditioning_set_area_strength(context, conditioning=given, strength=0.5)
    nodes.conditioning_set_timestep_range(context, conditioning=given, start=0.1, end=0.6)
    nodes.conditioning_zero_out(context, conditioning=given)
    assert list(given[0][1]) == ["pooled_output"]
    assert given[0][0].min() == 1.0


def test_a_mask_gets_a_batch_dimension() -> None:
    options = nodes.conditioning_set_mask(
        context, conditioning=entry(), mask=torch.ones(4, 4), strength=0.5, set_cond_area="mask bounds"
    )[0][1]
    assert options["mask"].shape == (1, 4, 4)
    assert (options["set_area_to_bounds"], options["mask_strength"]) == (True, 0.5)


def test_zeroed_entries_keep_their_shape_and_other_options() -> None:
    tokens, options = nodes.conditioning_zero_out(context, conditioning=entry(2, strength=0.5))[0]
    assert tokens.shape == (1, 2, 3)
    assert tokens.max() == options["pooled_output"].max() == 0.0
    assert options["strength"] == 0.5
