"""Sizes of batches that are used, from measured figures."""

from __future__ import annotations

import pytest

from darkroom.engine.tuning.batching.widths import WidthFigure, Widths, affordable, candidates, chosen


def figures(*rows: tuple[int, float, int | None]) -> list[WidthFigure]:
    """Figures of widths with bits; those of the first are the bits without company."""
    return [WidthFigure(width, seconds, bits, 0.0 if bits == rows[0][2] else 1e-6) for width, seconds, bits in rows]


H100_LIKE = {2: 8.5, 3: 11.5, 4: 14.0, 6: 19.5, 8: 25.0, 12: 36.0, 16: 47.0}  # made-up milliseconds


def test_candidates_have_place_for_powers_of_two_and_those_in_between() -> None:
    assert candidates(16) == [1, 2, 3, 4, 6, 8, 12, 16]
    assert candidates(16, 2) == [2, 4, 6, 8, 12, 16]
    assert candidates(16, 5) == [5, 10, 15]
    assert candidates(1) == [1] and candidates(1, 2) == []


def test_widths_with_the_bits_that_a_row_has_alone_are_used() -> None:
    found = chosen(figures((2, 1.1, 0), (4, 1.5, 0), (6, 1.6, 1), (8, 2.0, 0), (16, 3.9, 2)), own_rows=2)
    assert found.widths == (2, 4, 8) and found.error == 0.0
    assert [found.fitting(rows) for rows in (1, 2, 4, 5, 8)] == [2, 2, 4, 8, 8]
    with pytest.raises(ValueError, match="9 rows"):
        found.fitting(9)


@pytest.mark.parametrize("own_rows", [2, 4])
def test_a_request_without_company_is_never_padded(own_rows: int) -> None:
    """Whatever is faster with others: the first width is its own."""
    for bits in ([0, 0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1, 1], [0, 1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 1, 1, 1]):
        rows = zip(H100_LIKE.items(), bits, strict=True)
        measured = figures(*((width, seconds, number) for (width, seconds), number in rows if width >= own_rows))
        for tolerance in (0.0, 1e-3):
            assert chosen(measured, own_rows, tolerance).widths[:1] in ((), (own_rows,))


def test_where_every_width_has_its_own_bits_none_is_shared_but_within_a_tolerance() -> None:
    measured = figures(*((width, seconds, number) for number, (width, seconds) in enumerate(H100_LIKE.items())))
    assert chosen(measured, 2) == Widths(
        reason="no widths give a row the same bits in company", figures=tuple(measured)
    )
    assert chosen(measured, 2, 1e-3).widths == tuple(H100_LIKE)
    assert chosen(measured, 2, 1e-3).error == 1e-6


def test_widths_beyond_the_tolerance_are_not_used() -> None:
    measured = [WidthFigure(2, 1.0, 0), WidthFigure(4, 1.2, 1, 1e-4), WidthFigure(8, 1.4, 2, 2e-3)]
    assert chosen(measured, 2, 1e-3).widths == (2, 4)
    broken = [WidthFigure(2, 1.0, 0), WidthFigure(4, 1.2, 1, float("nan"))]
    assert chosen(broken, 2, 1e-3).reason == "rows in company are too far from those without"


def test_widths_beyond_the_fastest_a_row_are_left_out() -> None:
    assert chosen(figures((2, 1.0, 0), (4, 1.4, 0), (8, 4.0, 0)), own_rows=2).widths == (2, 4)


def test_without_a_gain_evaluations_are_made_by_themselves() -> None:
    found = chosen(figures((2, 1.0, 0), (4, 2.0, 0), (8, 4.0, 0)), own_rows=2)
    assert found.reason == "rows in company are no faster" and found.most == 0


def test_widths_at_which_a_rows_bits_depend_on_its_place_are_not_used() -> None:
    assert chosen(figures((2, 1.0, 0), (4, 1.1, None), (8, 1.2, 0)), own_rows=2).widths == (2, 8)
    assert chosen(figures((2, 1.0, 0), (4, 1.1, None)), own_rows=2).most == 0
    assert chosen(figures((2, 1.0, None), (4, 1.1, None)), own_rows=2).most == 0


def test_as_many_evaluations_are_joined_as_take_the_least_time_each() -> None:
    measured = figures(*((width, seconds, 0) for width, seconds in H100_LIKE.items()))
    widths = chosen(measured, 2)
    assert [widths.num_to_join(2, waiting) for waiting in (1, 2, 3, 4, 8, 20)] == [1, 2, 3, 4, 8, 8]
    uneven = Widths((2, 8), figures=tuple(figures((2, 1.0, 0), (8, 3.2, 0))))
    assert [uneven.num_to_join(2, waiting) for waiting in (1, 2, 3, 4)] == [1, 1, 1, 4], "a wide one for many alone"
    assert Widths((2, 4, 6)).num_to_join(2, 9) == 3, "times that are not known decide nothing"
    assert Widths().num_to_join(2, 9) == 1


def test_a_width_can_be_taken_out_of_use() -> None:
    assert Widths((2, 4, 8)).without(8).widths == (2, 4)
    assert Widths((8,)).without(8).most == 0


def test_widths_that_cannot_be_measured_in_time_are_left_out_from_the_largest() -> None:
    assert affordable([1, 2, 3, 4], 2, row_seconds=0.1, budget_seconds=20) == [1, 2, 3, 4]
    assert affordable([1, 2, 3, 4], 2, row_seconds=1.0, budget_seconds=28) == [1, 2, 3]
    assert affordable([1, 2, 3, 4], 2, row_seconds=1.0, budget_seconds=12) == []  # 1 and 2 hold no second run
    assert affordable([1], 1, row_seconds=0.1, budget_seconds=20) == []
