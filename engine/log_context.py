"""Context of log records: the prompt and the node that the current code runs for, and what it warns of.

Code sets it where a run or a node call begins; the formatter of structured records reads it. It is known in awaited
code and in tasks that copy the context, not in threads that a node starts on its own.

A warning that is reported here is logged, and is also a warning in the result of the job whose node runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

MAX_WARNINGS = 20  # of one node
MAX_MESSAGE_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class NodeWarning:
    """Part of a node's work that was left out, or has another effect than it seems. `type` is a stable code."""

    type: str
    message: str


@dataclass(frozen=True, slots=True)
class LogContext:
    """Prompt and node of a log record; an empty field is unknown. `warnings` are those of the node so far."""

    prompt_id: str = ""
    node_id: str = ""
    class_type: str = ""
    warnings: list[NodeWarning] | None = None


_CURRENT: ContextVar[LogContext | None] = ContextVar("log_context", default=None)


def log_context() -> LogContext:
    """Return the context of a record that is logged now."""
    return _CURRENT.get() or LogContext()


@contextmanager
def logged_as(
    prompt_id: str, node_id: str = "", class_type: str = "", warnings: list[NodeWarning] | None = None
) -> Iterator[None]:
    """Set the context of all records that are logged while the block is open; `warnings` takes those reported."""
    token = _CURRENT.set(LogContext(prompt_id, node_id, class_type, warnings))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def report_warning(log: logging.Logger, code: str, message: str) -> None:
    """Log a warning, and add it to those of the running node: each once, and no more than `MAX_WARNINGS`."""
    log.warning("%s", message)
    told = log_context().warnings
    warning = NodeWarning(code, message[:MAX_MESSAGE_CHARACTERS])
    if told is not None and warning not in told and len(told) < MAX_WARNINGS:
        told.append(warning)
