"""Callers' patterns mean what they mean to `re`: compared with it over a table, every character and random patterns."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from darkroom.engine.nodes.library.basic.pattern_syntax import PatternTooDeep
from darkroom.engine.nodes.library.basic.patterns import CallerPattern, replaced

TEXTS = (
    "",
    "a photo of a (red:1.2) fox, [trees], masterpiece",
    "line one\nline two\r\n\tline three\n",
    "Ärger im Straßenverkehr: 12,5 € – naïve café e\u0301te",
    "foo{e} {e<=1} {1,b} {,} a{,2} {{x}} [[:alpha:]] --&&||~~",
    "aaa aab abb ABC k\u212a s, \u017f iI\u0130\u0131 ss\u00df\u1e9e",
    "<lora:name:0.8> <lora:other:-1> 2024-01-31 x_1 y-2 \x1c\x1f\x85\u2028 \U0001f98a",
    "हिन्दी में \u09f4 ² ½ Ⅷ 一二",
)
PATTERNS = (
    # what users write
    r"\d+", r"\s+", r"\w+", r"[^\w\s]", r"\(([^:()]+):([\d.]+)\)", r"<lora:([^:>]+):(-?[\d.]+)>", r"^\s*|\s*$",
    r"(\d{4})-(\d\d)-(\d\d)", r"(?P<key>\w+)\s*[:=]\s*(?P<value>\S+)", r"(?i)FOX|trees", r"\bfox\b", r"\Ba\B", r"^line",
    r"one$", r"line.*", r"(.+?)\n", r"(\w)\1", r"(?P<c>.)(?P=c)", r"[a-zäöüß]+", r"[^\W\d_]+", r"[\W\d]", r"\.", r"",
    r"x*", r"a|", r"(a)|(b)|c", r"(a)?(b)?c?", r"(?:a|ab)(?:c|bcd)?", r"a(?=b)", r"a(?!b)", r"(?<=a)b", r"(?<!a)b",
    r"(?<=,|;)\s", r"(a)?(?(1)a|b)", r"(?s:.)", r"(?m)^.", r"(?x) l i n e  # words", r"\Aa", r"\n\Z", r"$", r"(?#no)a",
    # what only one of the two reads as more than text
    r"(?:foo){e}", r"foo{e<=1}", r"{e}", r"{1,b}", r"a{,2}", r"a{,}", r"{", r"}", r"a{2}{1}", r"[[:alpha:]]", r"[a&&b]",
    r"[a--b]", r"[a||b]", r"[~~]", r"[]a]", r"[^]a]", r"[a-]", r"[\]]", r"[[]", r"\x41|\u00e4|\101",
    r"\N{LATIN SMALL LETTER A}",
    # quantifiers and groups of newer Pythons
    r"a++b", r"a*+a", r"(?>a+)b", r"a{1,2}+b", r"a?+a", r"a+?b", r"a{1,2}?", r"(?i:A)b", r"(?-i:a)b", r"(?a:\w)+",
    r"(?a)\b\w+",
    r"(?ai)K", r"(?ai)[a-z]+", r"(?i)[^a-z]", r"(?i)i", r"(?i)ss", r"(?i)[h-j]", r"(?i)(k)\1", r"(?iu)\u017f",
)  # fmt: skip
BROKEN = (
    "(", ")", "[", "a**", "*a", "a{2,1}", r"\p{L}", r"\K", r"\m", r"\R", r"\X", r"\G", r"(?<n>a)", "(?|a|b)", "(?r)a",
    "(?b)a",
    "(?e)a", "(?V1)a", "(?L)a", "(?P<1>a)", "(?P=x)", r"\2(a)", "(?<=a+)b", "(?<=a|bc)d", r"\q", "(?P<a>x)(?P<a>y)",
    "a(?i)b",
    "(?P>a)", r"(?R)", r"(?1)", r"\g<1>(a)", "(?au)a", r"[z-a]", r"\x4", r"\N{no such}", "(?(2)a|b)", "(*FAIL)",
)  # fmt: skip
FLAGS = (0, re.IGNORECASE, re.MULTILINE, re.DOTALL, re.IGNORECASE | re.MULTILINE | re.DOTALL)
TEMPLATES = (
    "", "x", r"[\g<0>]", r"\1", r"<\1|\1>", r"\2\1", r"\g<1>0", r"\10", r"\g<key>=\g<value>", r"\n\t\\", r"\0", r"\07",
    r"\q",
    r"\g<", r"\g<no>", r"\g<-1>", "\\", r"$1 \$ {0} %s", r"\g<00>", r"\400", r"\.", "\U000f0000\\1",
)  # fmt: skip


def outcome(call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `re` warns of what other languages would read as a set
        try:
            return call()
        except (re.error, IndexError, ValueError) as error:
            return type(error)


def found_by_re(pattern: str, flags: int, text: str) -> Any:
    return [(match.span(), match.groups()) for match in re.finditer(pattern, text, flags)]


def found(pattern: str, flags: int, text: str) -> Any:
    return [(match.span(), match.groups()) for match in CallerPattern(pattern, flags).matches(text)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_finds_what_re_finds_with_the_same_groups(pattern: str) -> None:
    for flags in FLAGS:
        for text in TEXTS:
            expected = outcome(lambda flags=flags, text=text: found_by_re(pattern, flags, text))  # type: ignore[misc]
            assert outcome(lambda flags=flags, text=text: found(pattern, flags, text)) == expected, (flags, text)  # type: ignore[misc]


@pytest.mark.parametrize("pattern", BROKEN)
def test_what_re_cannot_read_is_refused_with_the_same_error(pattern: str) -> None:
    expected = outcome(lambda: found_by_re(pattern, 0, "a"))
    assert isinstance(expected, type), "this one is readable"
    assert outcome(lambda: found(pattern, 0, "a")) is expected


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("pattern", [r"\w", r"(\w)", r"(x)?(\w)", r"(?P<key>\w+):(?P<value>\S+)", "", "(.)" * 11])
def test_a_template_is_filled_in_as_re_does_it(pattern: str, template: str) -> None:
    for text in TEXTS:
        for count in (0, 1, 2):

            def by_re(text: str = text, count: int = count) -> str:
                return re.sub(pattern, template, text, count=count)

            def by_us(text: str = text, count: int = count) -> str:
                return CallerPattern(pattern, 0).replaced(text, template, count)

            assert outcome(by_us) == outcome(by_re), (text, count)


@pytest.mark.parametrize(
    "pattern", [r"\w", r"\W", r"\d", r"\s", r"\S", ".", r"(?a)\w", r"(?a)\s", r"(?i)[a-zà-ÿ]", r"(?i)k"]
)
def test_every_character_is_in_the_class_that_re_has_it_in(pattern: str) -> None:
    known = (chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    text = "".join(character for character in known if unicodedata.category(character) != "Cn")
    assert [match.group() for match in CallerPattern(pattern, 0).matches(text)] == re.findall(pattern, text)


def test_letters_are_equal_without_case_to_those_that_re_says() -> None:
    known = "".join(
        letter for letter in map(chr, range(0x20000)) if letter.lower() != letter or letter.upper() != letter
    )
    for letter in "aikszßàéΣσςкИıİſ\u212a\u1e9e":
        by_us = [match.group() for match in CallerPattern(letter, re.IGNORECASE).matches(known)]
        assert by_us == re.findall(letter, known, re.IGNORECASE), letter


atoms = st.sampled_from(
    ["a", "b", "A", " ", r"\n", r"\w", r"\d", r"\s", r"\W", r"\b", r"\B", ".", "^", "$", "[ab]", r"[^\Wb]", "[a-c1]",
     "1", "é", "i", "{e}", "{a", "[[:alpha:]]", "[]a]", "(?=a)", "(?!b)", "(?<=a)", "(?<!b)"]
)  # fmt: skip
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        inner.map("({})".format),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{,2}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(patterns, st.text("abA 1\né_i{}e", max_size=8), st.sampled_from(FLAGS))
def test_random_patterns_find_what_re_finds(pattern: str, text: str, flags: int) -> None:
    assert outcome(lambda: found(pattern, flags, text)) == outcome(lambda: found_by_re(pattern, flags, text))


def test_groups_nested_too_deeply_are_refused_by_name() -> None:
    with pytest.raises(PatternTooDeep, match="nested too deeply"):
        CallerPattern("(" * 4000 + ")" * 4000, 0)


@pytest.mark.parametrize(
    ("text", "find", "replacement"), [("aXa", "a", "bb"), ("ab", "", "-"), ("aaa", "aa", ""), ("", "", "x")]
)
def test_text_is_replaced_as_str_does_it(text: str, find: str, replacement: str) -> None:
    assert replaced(text, find, replacement) == text.replace(find, replacement)
