"""Nodes that cut, join, search and change strings. Patterns are those of Python's `re`.

A pattern is matched within a time limit, and a text that a node makes has a largest length:
`patterns.py`.
"""

from __future__ import annotations

import re
from typing import Annotated

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.basic.patterns import CallerPattern, joined, replaced
from darkroom.engine.nodes.markers import Optional, Out
from darkroom.engine.nodes.sockets import BOOLEAN, INT, STRING
from darkroom.engine.nodes.widgets import Combo, Flag, Int, Text

CATEGORY = "text"
MODULE = "comfy_extras.nodes_string"

Multiline = Annotated[str, Text(multiline=True)]


def _flags(case_insensitive: bool, multiline: bool, dotall: bool) -> re.RegexFlag:
    chosen = ((case_insensitive, re.IGNORECASE), (multiline, re.MULTILINE), (dotall, re.DOTALL))
    flags = re.RegexFlag(0)
    for is_on, flag in chosen:
        flags |= flag if is_on else re.RegexFlag(0)
    return flags


@node("StringConcatenate", display_name="Concatenate Text", category=CATEGORY, python_module=MODULE)
def string_concatenate(
    context: NodeContext,
    *,
    string_a: Multiline,
    string_b: Multiline,
    delimiter: Annotated[str, Text(multiline=False)] = "",
) -> STRING:
    return joined((string_a, string_b), delimiter)


@node("StringSubstring", display_name="Substring", category=CATEGORY, python_module=MODULE)
def string_substring(
    context: NodeContext, *, string: Multiline, start: Annotated[int, Int()], end: Annotated[int, Int()]
) -> STRING:
    """Cut a string from character `start` up to `end`; negative numbers count from the end."""
    return string[start:end]


@node("StringLength", display_name="Text Length", category=CATEGORY, python_module=MODULE)
def string_length(context: NodeContext, *, string: Multiline) -> Annotated[INT, Out("length")]:
    return len(string)


@node("CaseConverter", display_name="Convert Text Case", category=CATEGORY, python_module=MODULE)
def case_converter(
    context: NodeContext,
    *,
    string: Multiline,
    mode: Annotated[str, Combo(("UPPERCASE", "lowercase", "Capitalize", "Title Case"))],
) -> STRING:
    convert = {
        "UPPERCASE": str.upper,
        "lowercase": str.lower,
        "Capitalize": str.capitalize,
        "Title Case": str.title,
    }
    return joined((convert[mode](string),))  # a few letters become up to three


@node("StringTrim", display_name="Trim Text", category=CATEGORY, python_module=MODULE)
def string_trim(
    context: NodeContext, *, string: Multiline, mode: Annotated[str, Combo(("Both", "Left", "Right"))]
) -> STRING:
    return {"Both": str.strip, "Left": str.lstrip, "Right": str.rstrip}[mode](string)


@node("StringReplace", display_name="Replace Text", category=CATEGORY, python_module=MODULE)
def string_replace(context: NodeContext, *, string: Multiline, find: Multiline, replace: Multiline) -> STRING:
    return replaced(string, find, replace)


@node(
    "StringContains",
    display_name="Contains Text",
    category=CATEGORY,
    python_module=MODULE,
    advanced=("case_sensitive",),
)
def string_contains(
    context: NodeContext,
    *,
    string: Multiline,
    substring: Multiline,
    case_sensitive: Annotated[bool, Flag()] = True,
) -> Annotated[BOOLEAN, Out("contains")]:
    return substring in string if case_sensitive else substring.lower() in string.lower()


@node(
    "StringCompare", display_name="Compare Text", category=CATEGORY, python_module=MODULE, advanced=("case_sensitive",)
)
def string_compare(
    context: NodeContext,
    *,
    string_a: Multiline,
    string_b: Multiline,
    mode: Annotated[str, Combo(("Starts With", "Ends With", "Equal"))],
    case_sensitive: Annotated[bool, Flag()] = True,
) -> BOOLEAN:
    first, second = (string_a, string_b) if case_sensitive else (string_a.lower(), string_b.lower())
    if mode == "Equal":
        return first == second
    return first.startswith(second) if mode == "Starts With" else first.endswith(second)


@node(
    "RegexMatch",
    display_name="Match Text",
    category=CATEGORY,
    python_module=MODULE,
    advanced=("case_insensitive", "multiline", "dotall"),
)
def regex_match(
    context: NodeContext,
    *,
    string: Multiline,
    regex_pattern: Multiline,
    case_insensitive: Annotated[bool, Flag()] = True,
    multiline: Annotated[bool, Flag()] = False,
    dotall: Annotated[bool, Flag()] = False,
) -> Annotated[BOOLEAN, Out("matches")]:
    """Return True if the pattern matches anywhere. An invalid pattern matches nothing."""
    try:
        pattern = CallerPattern(regex_pattern, _flags(case_insensitive, multiline, dotall))
    except re.error:
        return False
    return any(True for _ in pattern.matches(string))


@node(
    "RegexExtract",
    display_name="Extract Text",
    category=CATEGORY,
    python_module=MODULE,
    advanced=("case_insensitive", "multiline", "dotall", "group_index"),
)
def regex_extract(
    context: NodeContext,
    *,
    string: Multiline,
    regex_pattern: Multiline,
    mode: Annotated[str, Combo(("First Match", "All Matches", "First Group", "All Groups"))],
    case_insensitive: Annotated[bool, Flag()] = True,
    multiline: Annotated[bool, Flag()] = False,
    dotall: Annotated[bool, Flag()] = False,
    group_index: Annotated[int, Int(min=0, max=100)] = 1,
) -> STRING:
    """Find the matches of a pattern, one per line; empty for no match or an invalid pattern.

    "All Matches" gives the first group of each match where the pattern has several groups (and the only one where it
    has one), as Python's `findall` does; "All Groups" finds nothing with a pattern that has no groups. A group that
    took no part in its match gives an empty string.
    """
    try:
        pattern = CallerPattern(regex_pattern, _flags(case_insensitive, multiline, dotall))
    except re.error:
        return ""
    has_group = pattern.num_groups >= group_index
    groups = {
        "First Match": 0,
        "All Matches": 1 if pattern.num_groups else 0,
        "First Group": group_index if has_group else None,
        "All Groups": group_index if has_group and pattern.num_groups else None,
    }
    group = groups[mode]
    if group is None:
        return ""
    found = (match.group(group) or "" for match in pattern.matches(string))
    return next(found, "") if mode.startswith("First") else joined(found, "\n")


@node(
    "RegexReplace",
    display_name="Replace Text (Regex)",
    category=CATEGORY,
    python_module=MODULE,
    advanced=("case_insensitive", "multiline", "dotall", "count"),
)
def regex_replace(
    context: NodeContext,
    *,
    string: Multiline,
    regex_pattern: Multiline,
    replace: Multiline,
    case_insensitive: Annotated[bool, Flag(), Optional()] = True,
    multiline: Annotated[bool, Flag(), Optional()] = False,
    dotall: Annotated[bool, Flag(), Optional()] = False,
    count: Annotated[int, Int(min=0, max=100), Optional()] = 0,
) -> STRING:
    """Find and replace text using regex patterns.

    At most `count` times, or everywhere for 0. Raises `re.error` for a pattern that cannot be read.
    """
    pattern = CallerPattern(regex_pattern, _flags(case_insensitive, multiline, dotall))
    return pattern.replaced(string, replace, count)


NODES = (
    string_concatenate,
    string_substring,
    string_length,
    case_converter,
    string_trim,
    string_replace,
    string_contains,
    string_compare,
    regex_match,
    regex_extract,
    regex_replace,
)
