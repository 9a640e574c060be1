"""JSON objects as requests, engines and files hold them: of whatever shape, so a member is checked before its use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias, TypeGuard

JsonObject: TypeAlias = Mapping[str, object]

WRONG_SHAPE: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of readers at values of another shape than they expect."""


def object_at(value: object, *names: str) -> JsonObject:
    """Return the JSON object at a path of names, an empty one where there is none."""
    for name in names:
        value = value.get(name) if _is_object(value) else None
    return value if _is_object(value) else {}


def _is_object(value: object) -> TypeGuard[JsonObject]:
    """Return True for a JSON object. Parsed JSON is a plain dict, which is cheaper to check than a Mapping."""
    return type(value) is dict or isinstance(value, Mapping)
