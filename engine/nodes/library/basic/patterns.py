"""Regular expressions of a caller, matched within a time limit, and the length limit of string nodes.

Patterns, flags and replacement templates mean what they mean to `re`. `re` itself cannot be stopped and holds the
interpreter while it matches, so the package `regex` does the matching. It counts processor time, that of other threads
of the process included, so a limit is no upper bound on a machine that is busy with something else.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from darkroom.engine.nodes.library.basic.pattern_syntax import translate

MATCH_SECONDS = 10.0
MAX_PATTERN_CHARACTERS = 10_000
MAX_TEXT_CHARACTERS = 16 * 2**20
PRIVATE_USE = range(0xF0000, 0xFFFFE)


class PatternTimedOut(TimeoutError):
    """A regular expression that took longer than its time limit."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the regular expression: took longer than {seconds:g} s of processor time on this text")


class PatternTooLarge(ValueError):
    """A regular expression that needs more memory for a text than `regex` gives it."""

    def __init__(self) -> None:
        super().__init__("the regular expression: needs too much memory on this text")


class TextTooLong(ValueError):
    """A text that is longer than a string node takes or makes."""

    def __init__(self, thing: str, limit: int) -> None:
        super().__init__(f"{thing}: too long; expected at most {limit} characters")


class CallerPattern:
    """A compiled pattern of a caller. Raises what `re.compile` raises, PatternTooDeep and TextTooLong."""

    def __init__(
        self,
        pattern: str,
        flags: int,
        *,
        seconds: float = MATCH_SECONDS,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        import regex  # not above: machines that only measure have torch and little else

        if len(pattern) > MAX_PATTERN_CHARACTERS:
            raise TextTooLong("the regular expression", MAX_PATTERN_CHARACTERS)
        translated = translate(pattern, flags)
        case = regex.IGNORECASE if translated.ignores_case else 0
        self._compiled: Any = regex.compile(translated.text, regex.VERSION0 | case)
        self._group_names = translated.group_names
        self._seconds = seconds
        self._clock_seconds = clock_seconds

    @property
    def num_groups(self) -> int:
        return len(self._group_names)

    def matches(self, text: str) -> Iterator[Any]:
        """Yield the matches as `re.finditer` does.

        Raises PatternTimedOut when all of them together take too long, and PatternTooLarge.
        """
        end = self._clock_seconds() + self._seconds
        try:
            for match in self._compiled.finditer(text, timeout=self._seconds):
                if self._clock_seconds() > end:
                    raise PatternTimedOut(self._seconds)
                yield match
        except PatternTimedOut:
            raise
        except TimeoutError:
            raise PatternTimedOut(self._seconds) from None
        except MemoryError:  # no lack of the machine's: the engine would let go of its models for nothing
            raise PatternTooLarge from None

    def replaced(self, text: str, template: str, count: int) -> str:
        """Replace matches, as `re.sub`. Raises PatternTimedOut, TextTooLong, and `re.error` for a wrong template."""
        pieces = _read_template(template, self._group_names)
        return joined(self._replaced_pieces(text, pieces, count))

    def _replaced_pieces(self, text: str, template: Sequence[str | int], count: int) -> Iterator[str]:
        end_of_last = 0
        for match in islice(self.matches(text), count or None):
            yield text[end_of_last : match.start()]
            for piece in template:
                yield piece if isinstance(piece, str) else match.group(piece) or ""
            end_of_last = match.end()
        yield text[end_of_last:]


def joined(pieces: Iterable[str], separator: str = "") -> str:
    """Join texts. Raises TextTooLong before the result is made, and before endless pieces fill the memory."""
    kept: list[str] = []
    num_characters = -len(separator)
    for piece in pieces:
        num_characters += len(piece) + len(separator)
        if num_characters > MAX_TEXT_CHARACTERS:
            raise TextTooLong("the text that the node makes", MAX_TEXT_CHARACTERS)
        kept.append(piece)
    return separator.join(kept)


def replaced(text: str, find: str, replacement: str) -> str:
    """Return the text with each `find` replaced, as `str.replace`. Raises TextTooLong before the result is made."""
    num_characters = len(text) + text.count(find) * (len(replacement) - len(find))
    if num_characters > MAX_TEXT_CHARACTERS:
        raise TextTooLong("the text that the node makes", MAX_TEXT_CHARACTERS)
    return text.replace(find, replacement)


def _read_template(template: str, group_names: Sequence[str | None]) -> list[str | int]:
    """Return the pieces of a replacement template: texts, and numbers of groups.

    `re` reads it: a pattern with the same groups matches one character for each of them, none of which the template
    holds, and what they become in the expanded template are the places of the groups.
    """
    if "\\" not in template:
        return [template]
    used = set(template)
    marks = list(islice((chr(code) for code in PRIVATE_USE if chr(code) not in used), len(group_names) + 1))
    groups = (
        f"({mark})" if name is None else f"(?P<{name}>{mark})"
        for name, mark in zip(group_names, marks[1:], strict=True)
    )
    # Inside a lookahead, so that the whole match is one character, too.
    match = re.match(f"(?={marks[0]}{''.join(groups)}){marks[0]}", "".join(marks))
    assert match is not None, "the pattern is made for this text"
    numbers = {mark: number for number, mark in enumerate(marks)}
    parts = re.split(f"([{''.join(marks)}])", match.expand(template))
    return [numbers.get(part, part) for part in parts if part]
