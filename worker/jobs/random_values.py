"""Substitution of `__RANDOM_INT__` in a prompt: done once and stored, so that a retry makes the same picture. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

RANDOM_INT = "__RANDOM_INT__"


def resolve(value: Any, draw: Callable[[], int]) -> Any:
    """Copy a JSON value with numbers in place of `__RANDOM_INT__`.

    A string that is the placeholder becomes a number; within a longer string it is replaced by the number's digits.
    """
    if isinstance(value, dict):
        return {key: resolve(item, draw) for key, item in value.items()}
    if isinstance(value, list):
        return [resolve(item, draw) for item in value]
    if isinstance(value, str) and RANDOM_INT in value:
        if value == RANDOM_INT:
            return draw()
        return re.sub(RANDOM_INT, lambda _: str(draw()), value)
    return value
