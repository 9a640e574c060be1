"""JSON without infinities: numbers that JSON cannot represent are written as null, as JavaScript writes them.

Requests cannot contain such numbers. Engines can send them, in a node's output and in the fields of an error, and
Python's own writer makes `Infinity` and `NaN` of them, which other parsers refuse.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from fastapi.responses import JSONResponse


class FiniteJSONResponse(JSONResponse):
    """JSON reply about a job, which may contain values from an engine."""

    def render(self, content: object) -> bytes:
        """Return the body; identical to Starlette's where all numbers are finite."""
        try:
            return super().render(content)
        except ValueError:
            return super().render(without_infinities(content))


def dumps(value: object) -> str:
    """Return the JSON text of a value."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(without_infinities(value), allow_nan=False)


def without_infinities(value: object) -> object:
    """Return a copy with None in place of every number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {without_infinities(key): without_infinities(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinities(item) for item in value]
    return value
