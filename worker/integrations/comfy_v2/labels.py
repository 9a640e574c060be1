"""Labels of jobs in the Comfy API v2: `metadata` of a submission, `metadata[KEY]=VALUE` in the query of the list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from darkroom.worker.errors import Problem, RequestRejected

MAX_LABELS: Final = 16
MAX_KEY_CHARS: Final = 64
MAX_VALUE_CHARS: Final = 512
INVALID: Final = "metadata_invalid"
INVALID_FILTER: Final = "invalid_metadata_filter"
PREFIX: Final = "metadata["


def read_labels(given: object) -> dict[str, str]:
    """Return the labels of a submission's body. Raises RequestRejected."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise _rejected(f"metadata: got {type(given).__name__}, expected an object of texts", "metadata", INVALID)
    return _checked(given.items(), "metadata", INVALID)


def read_filter(query: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the labels that a query of the list asks for. Raises RequestRejected."""
    asked = [(name, value) for name, value in query if name.startswith(PREFIX)]
    for name, _ in asked:
        if not name.endswith("]"):
            message = f"query.{name[:80]}: expected metadata[KEY]=VALUE"
            raise _rejected(message, "query.metadata", INVALID_FILTER)
    pairs = [(name[len(PREFIX) : -1], value) for name, value in asked]
    if len(dict(pairs)) < len(pairs):
        raise _rejected("query.metadata: got a key twice, expected once", "query.metadata", INVALID_FILTER)
    return _checked(pairs, "query.metadata", INVALID_FILTER)


def _checked(pairs: Iterable[tuple[str, object]], field: str, code: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    for name, value in pairs:
        if not 1 <= len(name) <= MAX_KEY_CHARS:
            message = f"{field}: key of {len(name)} characters, expected 1 to {MAX_KEY_CHARS}; got {name[:40]!r}"
            raise _rejected(message, field, code)
        if not isinstance(value, str) or len(value) > MAX_VALUE_CHARS:
            got = f"{len(value)} characters" if isinstance(value, str) else type(value).__name__
            message = f"{field}.{name}: got {got}, expected a text of at most {MAX_VALUE_CHARS} characters"
            raise _rejected(message, field, code)
        labels[name] = value
    if len(labels) > MAX_LABELS:
        raise _rejected(f"{field}: got {len(labels)} pairs, expected at most {MAX_LABELS}", field, code)
    return labels


def _rejected(message: str, field: str, code: str) -> RequestRejected:
    return RequestRejected([Problem(message, field, type=code)])
