"""Texts that ComfyUI's page rewrites when a workflow is queued: alternatives in prompts, values in file names. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

COMMENT: Final = re.compile(r"/\*.*?\*/|//.*", re.DOTALL)
LINE_COMMENT: Final = re.compile(r"//[^\n]*")
BLOCK_COMMENT: Final = re.compile(r"/\*.*?\*/", re.DOTALL)
PLACEHOLDER: Final = re.compile(r"%([^%]+)%")
DATE_PART: Final = re.compile(r"y+|M+|d+|h+|m+|s+")
DATE_TOKENS: Final[Mapping[str, str]] = {
    "y": "%year%",
    "M": "%month%",
    "d": "%day%",
    "h": "%hour%",
    "m": "%minute%",
    "s": "%second%",
}
UNSAFE: Final = re.compile(r'[/?<>\\:*|"\x00-\x1f\x7f]')


def choose_alternatives(text: str, choose: Callable[[int], int]) -> str:
    """Return a prompt without its comments, and with one of `{each|set|of alternatives}` in place of the set.

    `choose(n)` returns a number below n. A backslash before a brace or a bar keeps it. Sets may be nested.
    """
    text = LINE_COMMENT.sub("", BLOCK_COMMENT.sub("", text))
    sets: list[list[str]] = [[""]]  # the text, then each open set with its alternatives so far
    position = 0
    while position < len(text):
        mark = text[position]
        following = text[position + 1 : position + 2]
        if mark == "\\" and following in ("{", "}", "|"):
            sets[-1][-1] += following
            position += 1
        elif mark == "{":
            sets.append([""])
        elif mark == "|" and len(sets) > 1:
            sets[-1].append("")
        elif mark == "}" and len(sets) > 1:
            alternatives = sets.pop()
            sets[-1][-1] += alternatives[choose(len(alternatives))]
        else:
            sets[-1][-1] += mark
        position += 1
    while len(sets) > 1:  # a set that does not end
        alternatives = sets.pop()
        sets[-1][-1] += alternatives[choose(len(alternatives))]
    return sets[0][0]


def fill_name(text: str, values: Mapping[str, Mapping[str, Any]]) -> str:
    """Fill `%node.input%` in a file name with values by the node's name, and `%date:...%` with the engine's own marks.

    What is not found stays. The engine writes each part of a date with all its digits.
    """

    def replaced(match: re.Match[str]) -> str:
        inner = match[1]
        if inner.startswith("date:"):
            return DATE_PART.sub(lambda part: DATE_TOKENS[part[0][0]], inner.removeprefix("date:"))
        name, _, field = inner.partition(".")
        value = values.get(name, {}).get(field)
        return match[0] if value is None or isinstance(value, list | dict) else UNSAFE.sub("_", str(value))

    return PLACEHOLDER.sub(replaced, text)
