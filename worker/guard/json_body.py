"""Parsing of JSON bodies: strictly JSON, an object, finite numbers."""

from __future__ import annotations

import math
import sys
from typing import Final

from darkroom.worker.errors import Problem, RequestRejected
from darkroom.worker.guard.json_scan import check_json
from darkroom.worker.json import long as long_json
from darkroom.worker.settings.listener import JsonLimits

DEFAULT_LIMITS: Final = JsonLimits()
MAX_DIGITS: Final = 400  # of a whole number; the largest one with a fraction has 309


def parse_json(body: bytes | bytearray, limits: JsonLimits = DEFAULT_LIMITS) -> dict[str, object]:
    """Return the JSON object of a body. Raises RequestRejected.

    A text that is the JSON of an object, as clients make that encode twice, is that object; it is held to `limits`. So
    is a list of one object.
    """
    try:
        value = _loads(body)
        if isinstance(value, str) and value.lstrip().startswith("{"):
            value = parse_text(value, limits)
    except NumberRefused as error:
        raise RequestRejected([Problem(str(error), field="body", type="not_a_number")]) from None
    except (ValueError, RecursionError):
        raise RequestRejected([Problem("invalid JSON", field="body")]) from None
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0]  # one item of a workflow tool's list of them
    if not isinstance(value, dict):
        kinds = {list: "a list", str: "a text", type(None): "null", bool: "true or false"}
        got = kinds.get(type(value), "a number")
        raise RequestRejected([Problem(f"the body must be a JSON object; got {got}", field="body")])
    return value


def parse_text(text: str, limits: JsonLimits) -> object:
    """Return the value of a JSON text that is within a body. Raises ValueError, RecursionError, RequestRejected."""
    encoded = text.encode()
    check_json(encoded, limits)
    return _loads(encoded)


def _loads(body: bytes | bytearray) -> object:
    value: object = long_json.loads(body, parse_constant=_no_number, parse_float=_finite, parse_int=whole_number)
    return value


class NumberRefused(ValueError):
    """Number in a JSON text that JSON has no form for."""


def _no_number(name: str) -> None:
    raise NumberRefused(f"a number is not finite; got {name}, expected a finite number")


def whole_number(text: str) -> int:
    """Return a number. Raises NumberRefused for one of many digits: reading and writing it takes their square."""
    if len(text) > MAX_DIGITS:
        found = f"{text[:40]}... of {len(text)} characters"
        raise NumberRefused(f"a number is too large; got {found}, expected at most {MAX_DIGITS} digits")
    return int(text)


def _finite(text: str) -> float:
    """Return a number. Raises NumberRefused for one that is read as infinite: JSON cannot represent it."""
    value = float(text)
    if math.isinf(value):
        raise NumberRefused(f"a number is too large; got {text[:40]}, expected at most {sys.float_info.max:.4g}")
    return value


def nested_too_deeply() -> RequestRejected:
    """Return the rejection of a body that parses but is nested too deeply to traverse."""
    return RequestRejected([Problem("is nested too deeply", field="body")])
