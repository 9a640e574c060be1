"""Texts that ComfyUI's page rewrites when a workflow is queued: alternatives in prompts, values in file names. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

LINE_COMMENT: Final = re.compile(r"//[^\n]*")
ALTERNATIVE_MARK: Final = re.compile(r"\\[{}|]|[{}|]")
MAX_MARKS: Final = 100_000  # braces and bars of one prompt
MAX_NAME_LENGTH: Final = 1024  # of a file's name with its values, which is all that an engine takes
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


_Text = list["str | _Text"]
"""Parts of a text, so that a chosen alternative is not copied for each set around it."""


class TextRefused(ValueError):
    """A text that would become too long, or that has too many sets of alternatives."""


def choose_alternatives(text: str, choose: Callable[[int], int]) -> str:
    """Return a prompt without its comments, and with one of `{each|set|of alternatives}` in place of the set.

    `choose(n)` returns a number below n. A backslash before a brace or a bar keeps it. Sets may be nested. Raises
    TextRefused for more than MAX_MARKS braces and bars.
    """
    text = without_comments(text)
    sets: list[list[_Text]] = [[[]]]  # the text, then each open set with its alternatives so far
    position = 0
    for number, found in enumerate(ALTERNATIVE_MARK.finditer(text)):
        if number >= MAX_MARKS:
            raise TextRefused(f"has too many braces and bars; expected at most {MAX_MARKS}")
        sets[-1][-1].append(text[position : found.start()])
        position, mark = found.end(), found[0]
        if mark == "{":
            sets.append([[]])
        elif mark == "|" and len(sets) > 1:
            sets[-1].append([])
        elif mark == "}" and len(sets) > 1:
            _close_set(sets, choose)
        else:
            sets[-1][-1].append(mark[-1])
    if not position:
        return text
    sets[-1][-1].append(text[position:])
    while len(sets) > 1:  # a set that does not end
        _close_set(sets, choose)
    return "".join(_parts_of(sets[0][0]))


def _close_set(sets: list[list[_Text]], choose: Callable[[int], int]) -> None:
    alternatives = sets.pop()
    sets[-1][-1].append(alternatives[choose(len(alternatives))])


def _parts_of(text: _Text) -> Iterator[str]:
    """Yield the parts of a text in their order, without recursion: sets may be nested as deeply as a text is long."""
    waiting = [iter(text)]
    while waiting:
        part = next(waiting[-1], None)
        if part is None:
            waiting.pop()
        elif isinstance(part, str):
            yield part
        else:
            waiting.append(iter(part))


def without_comments(text: str) -> str:
    """Return a prompt without `/* blocks */` and `// ends of lines`; a block that does not end stays."""
    kept, position = list[str](), 0
    while (start := text.find("/*", position)) >= 0 and (end := text.find("*/", start + 2)) >= 0:
        kept.append(text[position:start])
        position = end + 2
    return LINE_COMMENT.sub("", "".join((*kept, text[position:])))


def fill_name(text: str, values: Mapping[str, Mapping[str, Any]]) -> str:
    """Fill `%node.input%` in a file name with values by the node's name, and `%date:...%` with the engine's own marks.

    What is not found stays. The engine writes each part of a date with all its digits. Raises TextRefused for a name
    that becomes longer than MAX_NAME_LENGTH.
    """
    parts, length, position = list[str](), 0, 0
    for found in PLACEHOLDER.finditer(text):
        parts += (text[position : found.start()], _filled(found, values))
        length += len(parts[-2]) + len(parts[-1])
        position = found.end()
        if length > MAX_NAME_LENGTH:
            break
    if length + len(text) - position > MAX_NAME_LENGTH:
        raise TextRefused(f"is too long with the values in it; expected at most {MAX_NAME_LENGTH} characters")
    return "".join((*parts, text[position:]))


def _filled(found: re.Match[str], values: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text for a mark in a file name, cut where it is too long for any name."""
    inner = found[1][: MAX_NAME_LENGTH + 1]
    if inner.startswith("date:"):
        return DATE_PART.sub(lambda part: DATE_TOKENS[part[0][0]], inner.removeprefix("date:"))
    name, _, field = found[1].partition(".")
    value = values.get(name, {}).get(field)
    if value is None or isinstance(value, list | dict):
        return found[0]
    return UNSAFE.sub("_", str(value)[: MAX_NAME_LENGTH + 1])
