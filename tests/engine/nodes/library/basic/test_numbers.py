"""The node that makes numbers of other values."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.engine.nodes.library.basic.numbers import comfy_number_convert

context: Any = None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, (1.0, 1)), (7, (7.0, 7)), (-2.75, (-2.75, -2)), (" 12 ", (12.0, 12)), ("1e3", (1000.0, 1000)),
        ("9007199254740993", (9007199254740992.0, 9007199254740993)), ("1_000", (1000.0, 1000)),
    ],
)  # fmt: skip
def test_a_number_a_flag_or_a_text_becomes_both_kinds(value: object, expected: tuple[float, int]) -> None:
    made = comfy_number_convert(context, value=value)
    assert made == expected and [type(item) for item in made] == [float, int]


@pytest.mark.parametrize("value", ["", "  ", "abc", "nan", "inf", "1" * 5000, "9" * 400, 10**400, float("inf")])
def test_what_is_no_finite_number_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="^value: "):
        comfy_number_convert(context, value=value)


def test_another_kind_of_value_is_refused() -> None:
    with pytest.raises(TypeError, match="got list"):
        comfy_number_convert(context, value=[1])
