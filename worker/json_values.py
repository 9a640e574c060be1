"""JSON objects as requests, engines and files hold them: of whatever shape, so a member is checked before its use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

JsonObject: TypeAlias = Mapping[str, object]


def object_at(value: object, *names: str) -> JsonObject:
    """Return the JSON object at a path of names, an empty one where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}
