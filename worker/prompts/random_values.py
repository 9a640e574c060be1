"""Substitution of `__RANDOM_INT__` in a prompt: done once and stored, so that a retry makes the same image."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

RANDOM_INT = "__RANDOM_INT__"


def repeatable(job_id: str, bound: int) -> Callable[[], int]:
    """Return the draws of a job that another worker may get too: there they are the same."""
    generator = random.Random(job_id)  # noqa: S311 - seeds of images
    return lambda: generator.randrange(bound)


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
