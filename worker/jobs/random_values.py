"""`__RANDOM_INT__` in a prompt: resolved once, stored with the job, so that a retry draws the same picture. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

RANDOM_INT = "__RANDOM_INT__"


def resolve(value: Any, draw: Callable[[], int]) -> Any:
    """A copy of a JSON value: a string that is the word becomes a number, the word inside a longer one its text."""
    if isinstance(value, dict):
        return {key: resolve(item, draw) for key, item in value.items()}
    if isinstance(value, list):
        return [resolve(item, draw) for item in value]
    if isinstance(value, str) and RANDOM_INT in value:
        if value == RANDOM_INT:
            return draw()
        return re.sub(RANDOM_INT, lambda _: str(draw()), value)
    return value
