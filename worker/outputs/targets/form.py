"""Checks of fields in the forms of stores, as pydantic's validators call them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from darkroom.worker.settings.object_keys import find_template_problem

HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
OWN_HEADERS: Final = frozenset({"host", "content-length", "content-type", "transfer-encoding", "connection"})


def find_header_problem(headers: dict[str, str], own: frozenset[str]) -> str | None:
    """Return the fault of a request's headers, or None; `own` are those that the worker sets."""
    for name, text in headers.items():
        if not HEADER_NAME.fullmatch(name) or not text.isascii() or not text.isprintable():
            return f"expected names and values of HTTP headers; got {name[:40]!r}"
        if name.lower() in own:
            return f"{name} is set by the worker"
    return None


def without_nulls(headers: Any) -> Any:
    """Return headers without those that are null, anything else as it is."""
    if not isinstance(headers, Mapping):
        return headers
    return {name: text for name, text in headers.items() if text is not None}


def checked(value: str, find_problem: Callable[[str], str | None]) -> str:
    """Return a text of a request, empty or as `find_problem` wants it. Raises ValueError."""
    problem = find_problem(value) if value else None
    if problem:
        raise ValueError(problem)
    return value


def check_template(value: str) -> str:
    """Return a template of keys. Raises ValueError for one that makes none."""
    problem = find_template_problem(value) if value else None
    if problem:
        raise ValueError(problem)
    return value
