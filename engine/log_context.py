"""Context of log records: the prompt and the node that the current code runs for.

Code sets it where a run or a node call begins; the formatter of structured records reads it. It is known in awaited
code and in tasks that copy the context, not in threads that a node starts on its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogContext:
    """Prompt and node of a log record; an empty field is unknown."""

    prompt_id: str = ""
    node_id: str = ""
    class_type: str = ""


_CURRENT: ContextVar[LogContext | None] = ContextVar("log_context", default=None)


def log_context() -> LogContext:
    """Return the context of a record that is logged now."""
    return _CURRENT.get() or LogContext()


@contextmanager
def logged_as(prompt_id: str, node_id: str = "", class_type: str = "") -> Iterator[None]:
    """Set the context of all records that are logged while the block is open."""
    token = _CURRENT.set(LogContext(prompt_id, node_id, class_type))
    try:
        yield
    finally:
        _CURRENT.reset(token)
