"""The text nodes: cutting, joining, comparing, and patterns with Python's flags."""

from __future__ import annotations

import re
from typing import Any

import pytest

from darkroom.engine.nodes.library.basic import strings

context: Any = None
PLAIN = {"case_insensitive": False, "multiline": False, "dotall": False}


def extracted(string: str, pattern: str, mode: str, group_index: int = 1, **flags: bool) -> str:
    result: str = strings.regex_extract(
        context, string=string, regex_pattern=pattern, mode=mode, group_index=group_index, **{**PLAIN, **flags}
    )
    return result


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("UPPERCASE", "A RED FOX"), ("lowercase", "a red fox"), ("Capitalize", "A red fox"), ("Title Case", "A Red Fox")],
)
def test_case_is_converted(mode: str, expected: str) -> None:
    assert strings.case_converter(context, string="a Red fox", mode=mode) == expected


def test_strings_are_joined_cut_trimmed_and_replaced() -> None:
    assert strings.string_concatenate(context, string_a="a", string_b="b", delimiter=", ") == "a, b"
    assert strings.string_substring(context, string="abcdef", start=1, end=-1) == "bcde"
    assert strings.string_length(context, string="ä b") == 3
    assert [strings.string_trim(context, string=" a ", mode=mode) for mode in ("Both", "Left", "Right")] == [
        "a", "a ", " a",
    ]  # fmt: skip
    assert strings.string_replace(context, string="aXa", find="a", replace="b") == "bXb"


def test_case_matters_only_when_it_should() -> None:
    for is_sensitive, expected in ((True, False), (False, True)):
        assert strings.string_contains(context, string="Fox", substring="fO", case_sensitive=is_sensitive) is expected
        for mode, other in (("Starts With", "fO"), ("Ends With", "OX"), ("Equal", "fox")):
            assert (
                strings.string_compare(context, string_a="Fox", string_b=other, mode=mode, case_sensitive=is_sensitive)
                is expected
            )


@pytest.mark.parametrize(
    ("pattern", "mode", "expected"),
    [
        (r"\d", "First Match", "1"),
        (r"x", "First Match", ""),
        (r"\w\d", "All Matches", "a1\nb2"),
        (r"(\w)(\d)", "All Matches", "a\nb"),
        (r"(\w)\d", "All Matches", "a\nb"),
        (r"(\w)(\d)", "First Group", "a"),
        (r"\w", "First Group", ""),
        (r"(\w)(\d)", "All Groups", "a\nb"),
        (r"\w\d", "All Groups", ""),
        (r"(", "All Matches", ""),
        (r"(a)(x)?", "All Groups", "a"),
    ],
)
def test_a_pattern_gives_what_it_finds_one_a_line(pattern: str, mode: str, expected: str) -> None:
    assert extracted("a1 b2", pattern, mode) == expected


def test_another_group_can_be_asked_for() -> None:
    assert extracted("a1 b2", r"(\w)(\d)", "All Groups", group_index=2) == "1\n2"
    assert extracted("a1", r"(a)(x)?", "First Group", group_index=2) == ""
    assert extracted("a1", r"\w", "First Group", group_index=0) == "a"


def test_flags_are_pythons() -> None:
    assert extracted("A\nb", "a.b", "First Match", case_insensitive=True, dotall=True) == "A\nb"
    assert extracted("a\nb", "^b", "First Match", multiline=True) == "b"
    assert strings.regex_match(context, string="A", regex_pattern="a", **{**PLAIN, "case_insensitive": True}) is True
    assert strings.regex_match(context, string="A", regex_pattern="(", **PLAIN) is False


def test_a_replacement_may_be_limited_and_a_broken_pattern_is_reported() -> None:
    replaced = strings.regex_replace(context, string="aaa", regex_pattern="(a)", replace=r"\1b", count=2)
    assert replaced == "ababa"
    with pytest.raises(re.error):
        strings.regex_replace(context, string="a", regex_pattern="(", replace="")
