"""Values as texts of at most the length that string nodes make."""

from __future__ import annotations

import json
from collections.abc import Mapping

from darkroom.engine.nodes.library.basic.patterns import MAX_TEXT_CHARACTERS, TextTooLong, joined

SEPARATOR_CHARACTERS = 2  # brackets, `, ` and `: `, for each item


def json_text(value: object, indent: int | None) -> str:
    """Return a value as JSON, on one line without an indent.

    Raises TextTooLong, and what `json` raises for a value that JSON cannot represent.
    """
    return joined(json.JSONEncoder(ensure_ascii=False, indent=indent).iterencode(value))


def check_length(value: object) -> None:
    """Raise TextTooLong for lists and dictionaries whose `str` would be too long, as far as their items tell.

    A list may hold another one many times over, and that one the next: a few of them make a text without end.
    """
    if _least_length(value, {}) > MAX_TEXT_CHARACTERS:
        raise TextTooLong("the text of a value", MAX_TEXT_CHARACTERS)


def _least_length(value: object, known: dict[int, int]) -> int:
    """Return a number of characters that the text of a value has at least. `known` has those of containers by id."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, (list, tuple, Mapping)):
        return 1
    if id(value) not in known:
        known[id(value)] = 1  # while it is counted: one that lies in itself is written as `...`
        num_characters = 0
        for item in [*value.keys(), *value.values()] if isinstance(value, Mapping) else value:
            num_characters += _least_length(item, known) + SEPARATOR_CHARACTERS  # a frame a level, as `json` has
        known[id(value)] = num_characters
    return known[id(value)]
