"""Translation of `re` patterns into the syntax of the package `regex`.

`regex` can stop a match after a time, `re` cannot. The two read the same text differently: fuzzy counts (`{e}`), POSIX
classes (`[[:alpha:]]`), `\\p{L}`, `\\w` with combining marks, lookbehind of variable width. So `re`'s own parser reads
the pattern, and what it found is written down in a form that `regex` can only read in one way.

Three differences remain. Characters younger than Python's Unicode tables are letters to `\\w` when `regex` has them. A
back reference without case takes letters for equal that `re` takes for equal only outside of one (`s` and `\u017f`).
After a possessive repetition whose last round matched nothing (`(?:(a)|b??)*+`), `re` gives an empty group and `regex`
what the group matched before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from re import _constants as codes  # type: ignore[attr-defined]  # the names of what the parser finds
from re import _parser as parser  # type: ignore[attr-defined]  # hypothesis and exrex read it too
from typing import Any

Parsed = Any  # a code, or codes with their arguments, as the parser nests them

WORD = r"\p{L}\p{N}_"
ASCII_WORD = "0-9A-Z_a-z"
SPACE = r"\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
ASCII_SPACE = r"\t-\r\x20"
DOTLESS_I = "Ii\u0130\u0131"  # equal to each other for `re` alone, in pairs that `same_letters` asks it for


class PatternTooDeep(ValueError):
    """A pattern whose groups are nested deeper than Python's stack allows."""


@dataclass(frozen=True, slots=True)
class _Flags:
    ignores_case: bool
    is_multiline: bool
    dot_is_all: bool
    is_ascii: bool

    @staticmethod
    def of(bits: int) -> _Flags:
        return _Flags(*(bool(bits & flag) for flag in (re.IGNORECASE, re.MULTILINE, re.DOTALL, re.ASCII)))

    def changed(self, added: int, removed: int) -> _Flags:
        """Return the flags inside `(?imsx-imsx:...)`; `a` and `u` replace each other."""
        bits = {"ignores_case": re.IGNORECASE, "is_multiline": re.MULTILINE, "dot_is_all": re.DOTALL}
        kept = {name: (getattr(self, name) or bool(added & bit)) and not removed & bit for name, bit in bits.items()}
        is_ascii = (self.is_ascii or bool(added & re.ASCII)) and not added & re.UNICODE
        return replace(self, **kept, is_ascii=is_ascii)


@dataclass(frozen=True, slots=True)
class Translated:
    """A pattern for `regex` and its flags; `group_names` are the names of its groups by number, from 1."""

    text: str
    ignores_case: bool
    group_names: tuple[str | None, ...]


def translate(pattern: str, flags: int) -> Translated:
    """Return `pattern`, read as `re` reads it, in a form that means the same to `regex`.

    Raises what `re.compile` raises for it, and PatternTooDeep.
    """
    try:
        tree = parser.parse(pattern, flags)
        outer = _Flags.of(tree.state.flags)
        text = _sequence(tree, outer)
    except RecursionError:
        raise PatternTooDeep("the regular expression: its groups are nested too deeply") from None
    names: list[str | None] = [None] * (tree.state.groups - 1)
    for name, number in tree.state.groupdict.items():
        names[number - 1] = name
    return Translated(text, outer.ignores_case, tuple(names))


def _sequence(items: Iterable[Parsed], flags: _Flags) -> str:
    return "".join(_item(code, value, flags) for code, value in items)


def _item(code: Parsed, value: Parsed, flags: _Flags) -> str:
    if code is codes.LITERAL:
        return _literal(value, flags)
    if code is codes.NOT_LITERAL:
        return _set([(codes.NEGATE, None), (codes.LITERAL, value)], flags)
    if code is codes.ANY:
        return "(?s:.)" if flags.dot_is_all else "."
    if code is codes.IN:
        return _set(value, flags)
    if code is codes.AT:
        return _place(value, flags)
    if code is codes.BRANCH:
        return f"(?:{'|'.join(_sequence(branch, flags) for branch in value[1])})"
    if code is codes.SUBPATTERN:
        number, added, removed, items = value
        return _group(number, flags, flags.changed(added, removed), items)
    if code in QUANTIFIERS:
        least, most, item = value
        limit = "" if most is codes.MAXREPEAT else int(most)
        return f"(?:{_sequence(item, flags)}){{{int(least)},{limit}}}{QUANTIFIERS[code]}"
    if code is codes.ATOMIC_GROUP:
        return f"(?>{_sequence(value, flags)})"
    if code is codes.GROUPREF:
        return rf"\g<{value}>"
    if code is codes.GROUPREF_EXISTS:
        number, yes, no = value
        return f"(?({number})(?:{_sequence(yes, flags)})|(?:{_sequence(no or (), flags)}))"
    if code in (codes.ASSERT, codes.ASSERT_NOT):
        direction, items = value
        return _look(code, direction, items, flags)
    if code is codes.FAILURE:
        return "(?!)"
    raise re.error(f"unsupported construct {code}")


QUANTIFIERS = {codes.MAX_REPEAT: "", codes.MIN_REPEAT: "?", codes.POSSESSIVE_REPEAT: "+"}


def _group(number: int | None, outer: _Flags, inner: _Flags, items: Parsed) -> str:
    text = _sequence(items, inner)
    if inner.ignores_case is not outer.ignores_case:
        text = f"(?{'i' if inner.ignores_case else '-i'}:{text})"
    return f"(?:{text})" if number is None else f"({text})"


def _look(code: Parsed, direction: int, items: Parsed, flags: _Flags) -> str:
    if direction < 0:
        least, most = items.getwidth()
        if least != most:
            raise re.error("look-behind requires fixed-width pattern")
    sign = "=" if code is codes.ASSERT else "!"
    return f"(?{'<' if direction < 0 else ''}{sign}{_sequence(items, flags)})"


def _place(code: object, flags: _Flags) -> str:
    if code in (codes.AT_BOUNDARY, codes.AT_NON_BOUNDARY):
        word = f"[{ASCII_WORD if flags.is_ascii else WORD}]"
        if code is codes.AT_BOUNDARY:
            return f"(?:(?<={word})(?!{word})|(?<!{word})(?={word}))"
        but_nothing = r"(?!\A\Z)" if re.search(r"\B", "") is None else ""  # Python 3.14 changed its answer
        return f"(?:(?<={word})(?={word})|(?<!{word})(?!{word}){but_nothing})"
    if code is codes.AT_BEGINNING:
        return "(?m:^)" if flags.is_multiline else r"\A"
    if code is codes.AT_END:
        return "(?m:$)" if flags.is_multiline else "$"
    return r"\A" if code is codes.AT_BEGINNING_STRING else r"\Z"


def _literal(character: int, flags: _Flags) -> str:
    text = chr(character)
    if flags.ignores_case and flags.is_ascii:
        return f"(?-i:[{_escaped(character)}{_escaped(ord(text.swapcase())) if text.isascii() else ''}])"
    if flags.ignores_case and text in DOTLESS_I:
        return f"(?-i:[{_same_letters(text)}])"
    return _escaped(character)


def _set(items: Parsed, flags: _Flags) -> str:
    """Return a set. What a set of `regex` cannot hold (a negated category) becomes an alternative beside it."""
    inside: list[str] = []
    beside: list[str] = []
    is_negated = False
    for code, value in items:
        if code is codes.NEGATE:
            is_negated = True
        elif code is codes.CATEGORY:
            category, is_all_but = _category(value, flags)
            if is_all_but:
                beside.append(f"[^{category}]")
            else:
                inside.append(category)
        else:
            low, high = value if code is codes.RANGE else (value, value)
            inside += _range(low, high, flags)
    start = "[^" if is_negated and not beside else "["
    plain = [f"{start}{''.join(inside)}]"] if inside else []
    if flags.ignores_case and flags.is_ascii:
        plain = [f"(?-i:{text})" for text in plain]
    either = "|".join([*plain, *beside])
    if not beside:
        return either
    return f"(?!{either})(?s:.)" if is_negated else f"(?:{either})"


def _range(low: int, high: int, flags: _Flags) -> list[str]:
    found = [_escaped(low) if low == high else f"{_escaped(low)}-{_escaped(high)}"]
    if flags.ignores_case and flags.is_ascii:
        for first, last, change in ((65, 90, 32), (97, 122, -32)):
            begin, end = max(low, first), min(high, last)
            if begin <= end:
                found.append(f"{_escaped(begin + change)}-{_escaped(end + change)}")
    elif flags.ignores_case:
        found += [_same_letters(letter) for letter in DOTLESS_I if low <= ord(letter) <= high]
    return found


def _same_letters(letter: str) -> str:
    return "".join(re.findall(letter, DOTLESS_I, re.IGNORECASE))


def _category(code: object, flags: _Flags) -> tuple[str, bool]:
    """Return the content of a set for a category, and True if the category is negated."""
    plain = {
        codes.CATEGORY_DIGIT: ("0-9" if flags.is_ascii else r"\p{Nd}", False),
        codes.CATEGORY_SPACE: (ASCII_SPACE if flags.is_ascii else SPACE, False),
        codes.CATEGORY_WORD: (ASCII_WORD if flags.is_ascii else WORD, False),
    }
    opposite = {
        codes.CATEGORY_NOT_DIGIT: codes.CATEGORY_DIGIT,
        codes.CATEGORY_NOT_SPACE: codes.CATEGORY_SPACE,
        codes.CATEGORY_NOT_WORD: codes.CATEGORY_WORD,
    }
    return (plain[opposite[code]][0], True) if code in opposite else plain[code]


def _escaped(character: int) -> str:
    text = chr(character)
    return text if text.isascii() and text.isalnum() else f"\\U{character:08x}"
