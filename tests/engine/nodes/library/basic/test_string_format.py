"""The node that fills values into a text: Python's format syntax without attributes and without end."""

from __future__ import annotations

import time
from typing import Any

import pytest

from darkroom.engine.nodes.library.basic.patterns import MAX_TEXT_CHARACTERS, TextTooLong
from darkroom.engine.nodes.library.basic.string_format import MAX_WIDTH, BadFormat, filled, string_format

environment: Any = None


@pytest.mark.parametrize(
    "text",
    [
        "{a} {b} {c}", "{b:>8}|{a:*^9}|{b:x}", "{c:.2f} {c:e} {b:,}", "{a!r:>8} {a!a}", "{{a}} }}{{", "{a:{b}}",
        "{d[0]} {d[1][key]} {e[key]}", "{a[1]}", "{d}", "{b:{a[0]}>{b}}",
    ],
)  # fmt: skip
def test_fills_as_python_does(text: str) -> None:
    values = {"a": "-ü", "b": 12, "c": 3.14159, "d": [1, {"key": "x"}], "e": {"key": 2}}
    assert filled(text, values) == text.format(**values)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{a.__class__}", "'a.__class__' is not allowed"),
        ("{a[0].x}", "is not allowed"),
        ("{a.__init__.__globals__[os]}", "is not allowed"),
        ("{a:{a.real}}", "is not allowed"),
        ("{z}", "no value 'z'; expected one of a"),
        ("{}", "no value ''"),
        ("{0}", "no value '0'"),
        ("{a[9]}", "finds nothing at '9'"),
        ("{b[0]}", "indexes int"),
        ("{a!x}", "conversion 'x'"),
        ("{a", "no format text"),
        ("}", "no format text"),
        ("{b:999999999}", "width 999999999"),
        ("{c:.99999f}", "width 99999"),
        ("{b:{d}}", "width 100000"),
        ("{a:d}", "does not fit"),
        ("{e:x}", "is for numbers and texts"),
    ],
)
def test_refuses_what_reaches_further_or_has_no_end(text: str, problem: str) -> None:
    with pytest.raises(BadFormat, match="^f_string: ") as refused:
        filled(text, {"a": "text", "b": 7, "c": 1.5, "d": 100_000, "e": object})
    assert problem in str(refused.value)


def test_a_value_of_another_kind_is_shown_as_text() -> None:
    assert filled("{a} {b}", {"a": {"x": 1}, "b": None}) == "{'x': 1} None"


def test_many_wide_fields_end_at_the_longest_text() -> None:
    started = time.monotonic()
    with pytest.raises(TextTooLong):
        filled(f"{{a:{MAX_WIDTH}}}" * 5000, {"a": 1})
    assert time.monotonic() - started < 20


def test_texts_of_which_a_precision_leaves_nothing_count_too() -> None:
    long = "a" * (MAX_TEXT_CHARACTERS // 2 - 1)
    assert filled("{a!r:.1}{a:.1}", {"a": long}) == "'a"
    with pytest.raises(TextTooLong, match="of all fields"):
        filled("{a!r:.0}" * 1_000_000, {"a": long})


def test_lists_that_hold_one_another_many_times_are_refused() -> None:
    value: list[Any] = ["a", "b"]
    for _ in range(60):
        value = [value, value]
    for text in ("{a}", "{a!r}", "{a!a:.1}"):
        with pytest.raises(TextTooLong, match="of a value"):
            filled(text, {"a": value})


@pytest.mark.parametrize(
    ("text", "is_fine"),
    [("{a} {b:>3} {{}}", True), ("{a.b}", False), ("{", False), ("{a!q}", False), ("{a:99999999}", False)],
)
def test_a_text_is_checked_before_anything_runs(text: str, is_fine: bool) -> None:
    assert string_format.check is not None
    assert (string_format.check(environment, f_string=text) is None) == is_fine
