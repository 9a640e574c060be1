"""Which widths of batches are used, from measured figures."""

from __future__ import annotations

import pytest

from engine.tuning.batching.widths import WidthFigure, Widths, affordable, candidates, chosen


def figures(*rows: tuple[int, float, int | None]) -> list[WidthFigure]:
    return [WidthFigure(*row) for row in rows]


def test_candidates_are_powers_of_two_and_those_in_between() -> None:
    assert candidates(16) == [1, 2, 3, 4, 6, 8, 12, 16]
    assert candidates(1) == [1]


def test_widths_with_equal_bits_and_the_most_rows_a_second_are_used() -> None:
    found = chosen(figures((1, 1.0, 0), (2, 1.1, 1), (4, 1.5, 2), (8, 2.0, 2), (16, 3.9, 3)), own_rows=2)
    assert found.widths == (4, 8)
    assert [found.fitting(rows) for rows in (1, 2, 4, 5, 8)] == [4, 4, 4, 8, 8]
    with pytest.raises(ValueError, match="9 rows"):
        found.fitting(9)


def test_a_set_that_makes_an_evaluation_without_company_too_slow_is_not_used() -> None:
    found = chosen(figures((1, 1.0, 0), (2, 1.0, 0), (4, 1.8, 0), (16, 2.6, 1)), own_rows=2)
    assert found.widths == (1, 2, 4)


def test_widths_beyond_the_fastest_a_row_are_left_out() -> None:
    assert chosen(figures((2, 1.0, 0), (4, 1.4, 0), (8, 4.0, 0)), own_rows=2).widths == (2, 4)


def test_without_a_gain_evaluations_are_made_by_themselves() -> None:
    found = chosen(figures((2, 1.0, 0), (4, 2.0, 0), (8, 4.0, 0)), own_rows=2)
    assert found == Widths(reason="rows in company are no faster") and found.most == 0


def test_widths_at_which_a_rows_bits_depend_on_its_place_are_not_used() -> None:
    assert chosen(figures((2, 1.0, 0), (4, 1.1, None), (8, 1.2, 1)), own_rows=2).widths == (8,)
    assert chosen(figures((2, 1.0, 0), (4, 1.1, None)), own_rows=2).most == 0


def test_a_width_can_be_taken_out_of_use() -> None:
    assert Widths((2, 4, 8)).without(8).widths == (2, 4)
    assert Widths((8,)).without(8).most == 0


def test_widths_that_cannot_be_measured_in_time_are_left_out_from_the_largest() -> None:
    assert affordable([1, 2, 3, 4], 2, row_seconds=0.1, budget_seconds=20) == [1, 2, 3, 4]
    assert affordable([1, 2, 3, 4], 2, row_seconds=1.0, budget_seconds=28) == [1, 2, 3]
    assert affordable([1, 2, 3, 4], 2, row_seconds=1.0, budget_seconds=12) == []  # 1 and 2 hold no second run
    assert affordable([1], 1, row_seconds=0.1, budget_seconds=20) == []
