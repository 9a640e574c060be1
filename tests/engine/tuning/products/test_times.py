"""The faster way for each number of rows, measured once for each shape of a layer."""

from __future__ import annotations

import torch

from darkroom.engine.tuning.products.times import MEASURED_ROWS, ProductTimes, RowChoice, Work, seconds_of

LIKE = torch.empty(0, 8)


def product(rows: torch.Tensor) -> torch.Tensor:
    return rows


def plain(rows: torch.Tensor) -> torch.Tensor:
    return rows


def test_the_product_is_used_for_the_rows_where_it_is_the_faster_way() -> None:
    asked: list[tuple[Work, int]] = []

    def seconds(work: Work, rows: torch.Tensor) -> float:
        asked.append((work, len(rows)))
        return 1e-4 * (1.0 + (0.001 * len(rows) if work is plain else 0.0))

    times = ProductTimes(seconds)
    choice = times.choice("a", LIKE, product, plain)
    assert dict(zip(MEASURED_ROWS, choice.is_faster, strict=True)) == {
        1: False, 16: False, 128: True, 1024: True, 4096: True,
    }  # fmt: skip
    assert choice and [choice.at(num_rows) for num_rows in (1, 40, 60, 700, 100_000)] == [
        False,
        False,
        True,
        True,
        True,
    ]
    num_asked = len(asked)
    assert times.choice("a", LIKE, plain, product) is choice and len(asked) == num_asked, "measured once"
    assert not times.choice("b", LIKE, plain, product), "the other way round it never gains"


def test_a_product_that_fails_is_not_the_faster_way() -> None:
    def seconds(work: Work, rows: torch.Tensor) -> float:
        if work is product and len(rows) < 128:
            raise RuntimeError("more rows, please")
        return 0.5 if work is product else 1.0

    assert ProductTimes(seconds).choice("a", LIKE, product, plain) == RowChoice((False, False, True, True, True))


def test_rows_that_would_take_long_are_not_tried() -> None:
    asked: list[int] = []

    def seconds(work: Work, rows: torch.Tensor) -> float:
        asked.append(len(rows))
        return 0.001 * len(rows) * (1 if work is product else 2)

    times = ProductTimes(seconds)
    assert times.known("a") is None
    choice = times.choice("a", LIKE, product, plain)
    assert all(choice.is_faster) and max(asked) == 16 and times.known("a") is choice


def test_little_gain_is_none() -> None:
    assert not ProductTimes(lambda work, rows: 1.0 if work is plain else 0.97).choice("a", LIKE, product, plain)


def test_where_there_is_nothing_to_measure_products_are_used() -> None:
    assert all(ProductTimes().choice("a", LIKE.to("meta"), product, plain).is_faster)


def test_a_call_takes_time() -> None:
    assert seconds_of(lambda rows: rows @ rows.t(), torch.randn(64, 8)) >= 0.0
