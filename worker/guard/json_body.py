"""Parsing of JSON bodies: strictly JSON, an object, finite numbers."""

from __future__ import annotations

import math
import sys

from worker import long_json
from worker.errors import Problem, RequestRejected


def parse_json(body: bytes | bytearray) -> dict[str, object]:
    """Return the JSON object of a body. Raises RequestRejected."""
    try:
        value = long_json.loads(body, parse_constant=_no_number, parse_float=_finite)
    except NumberRefused as error:
        raise RequestRejected([Problem(str(error), field="body", type="not_a_number")]) from None
    except (ValueError, RecursionError):
        raise RequestRejected([Problem("invalid JSON", field="body")]) from None
    if not isinstance(value, dict):
        raise RequestRejected([Problem("the body must be a JSON object", field="body")])
    return value


class NumberRefused(ValueError):
    """Number in a JSON text that JSON has no form for."""


def _no_number(name: str) -> None:
    raise NumberRefused(f"a number is not finite; got {name}, expected a finite number")


def _finite(text: str) -> float:
    """Return a number. Raises NumberRefused for one that is read as infinite: JSON cannot represent it."""
    value = float(text)
    if math.isinf(value):
        raise NumberRefused(f"a number is too large; got {text[:40]}, expected at most {sys.float_info.max:.4g}")
    return value


def nested_too_deeply() -> RequestRejected:
    """Return the rejection of a body that parses but is nested too deeply to traverse."""
    return RequestRejected([Problem("is nested too deeply", field="body")])
