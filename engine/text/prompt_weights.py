"""Weights of brackets in prompts, as ComfyUI reads them, in time linear in the text and without recursion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MAX_DEPTH = 900  # ComfyUI reads by recursion and fails a little deeper
GROWTH = 1.1  # of the weight, for a bracket that names none


class PromptTooDeep(ValueError):
    """Error for brackets nested deeper than ComfyUI reads."""

    def __init__(self) -> None:
        super().__init__(
            f"the prompt's brackets are nested more than {MAX_DEPTH} deep; expected at most {MAX_DEPTH}, "
            "or \\( and \\) where brackets are text"
        )


def parse_weights(text: str) -> list[tuple[str, float]]:
    """Split a prompt into parts with their weights: `(a)` weighs 1.1 times its surroundings, `(a:1.3)` weighs 1.3.

    Backslashes make brackets plain text. A closing bracket too many is text; an opening one too many too.
    Raises PromptTooDeep.
    """
    return [(show_escaped(part), weight) for part, weight in parse_hidden(hide_escaped(text))]


def parse_hidden(text: str, weight: float = 1.0) -> list[tuple[str, float]]:
    """Split a text of `hide_escaped` as `parse_weights` does; parts without brackets weigh `weight`."""
    return list(_Brackets.of(text).parts(weight))


def hide_escaped(text: str) -> str:
    """Return a text whose brackets behind backslashes are other characters."""
    return text.replace("\\)", "\0\1").replace("\\(", "\0\2")


def show_escaped(text: str) -> str:
    """Return a text of `hide_escaped` with its brackets, without the backslashes."""
    return text.replace("\0\1", ")").replace("\0\2", "(")


def unescaped(text: str) -> str:
    """Return a text whose brackets have no weights, without the backslashes that keep them text."""
    return text.replace("\\)", ")").replace("\\(", "(")


def nesting_problem(text: str) -> str | None:
    """Return the reason why a prompt's brackets cannot be read, or None."""
    if text.count("(") <= MAX_DEPTH:
        return None
    try:
        parse_weights(text)
    except PromptTooDeep as error:
        return str(error)
    return None


@dataclass(frozen=True, slots=True)
class _Brackets:
    """A text with the places of its brackets.

    `closed_by` maps an opening bracket to the one that closes it, `before` a closing bracket to the bracket before it
    (-1: none), `opened` lists the opening ones.
    """

    text: str
    closed_by: dict[int, int]
    before: dict[int, int]

    @classmethod
    def of(cls, text: str) -> _Brackets:
        closed_by: dict[int, int] = {}
        before: dict[int, int] = {}
        unclosed: list[int] = []
        last = -1
        for index, letter in enumerate(text):
            if letter == "(":
                unclosed.append(index)
                last = index
            elif letter == ")":
                if unclosed:
                    closed_by[unclosed.pop()] = index
                before[index] = last
                last = index
        return cls(text, closed_by, before)

    def parts(self, weight: float) -> Iterator[tuple[str, float]]:
        """Yield every part in the order of the text, with its weight."""
        open_groups: list[tuple[Iterator[tuple[int, int]], float]] = [(self._items(0, len(self.text)), weight)]
        while open_groups:
            items, weight = open_groups[-1]
            item = next(items, None)
            if item is None:
                open_groups.pop()
                continue
            start, end = item
            if end - start < 2 or self.text[start] != "(" or self.text[end - 1] != ")":
                yield self.text[start:end], weight
                continue
            if len(open_groups) > MAX_DEPTH:
                raise PromptTooDeep
            inner_end, inner_weight = self._weight(start + 1, end - 1, weight * GROWTH)
            open_groups.append((self._items(start + 1, inner_end), inner_weight))

    def _weight(self, start: int, end: int, weight: float) -> tuple[int, float]:
        """Return the end of a bracket's text, and its weight: the number after its last colon, if there is one.

        No bracket is in a number, so that only what follows the last one is searched.
        """
        colon = self.text.rfind(":", max(start, self.before[end] + 1), end)
        if colon > start:
            try:
                return colon, float(self.text[colon + 1 : end])
            except ValueError:
                pass  # not a number: the colon is text
        return end, weight

    def _items(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of outermost brackets and of the texts between them.

        Depth may fall below zero, as in ComfyUI: an opening bracket then only makes up for the closing one too many.
        A bracket that is not closed before `end` reaches up to there.
        """
        text_start = index = start
        missing = 0  # opening brackets
        while index < end:
            letter = self.text[index]
            if letter == "(" and missing == 0:
                if text_start < index:
                    yield text_start, index
                closed = self.closed_by.get(index, end)
                if closed >= end:
                    yield index, end
                    return
                yield index, closed + 1
                text_start = index = closed + 1
                continue
            missing += (letter == ")") - (letter == "(")
            index += 1
        if text_start < end:
            yield text_start, end
