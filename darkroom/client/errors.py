"""Errors of the client, by who must act.

WorkerError
  RequestRefused     the request is wrong, or not now: `status`, `code`, `problems`, `retry_after_seconds`
  JobFailed          the job ended without its images; `result` has its state and error
  WorkerUnreachable  no answer, or not again
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from darkroom.client.results import Result


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a refused request: its field, or its node, and the values that are allowed there."""

    message: str
    field: str | None = None
    node_id: str | None = None
    allowed: Any = None


class WorkerError(Exception):
    """Base of the client's errors."""


class RequestRefused(WorkerError):
    """Error for a request that the worker does not take. `body` is its answer, as far as that is JSON."""

    def __init__(self, status: int, body: Mapping[str, Any], retry_after_seconds: float | None = None) -> None:
        found = body.get("error")
        error: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
        message = str(error.get("message") or body.get("message") or f"the worker answers {status}")
        super().__init__(message)
        self.status = status
        self.body = body
        self.message = message
        self.code = str(error.get("code") or "")
        self.retry_after_seconds = retry_after_seconds
        self.problems = tuple(
            Problem(str(item.get("message")), item.get("field"), item.get("node_id"), item.get("allowed"))
            for item in error.get("problems") or ()
            if isinstance(item, Mapping)
        )


class JobFailed(WorkerError):
    """Error for a job that failed, was cancelled or ran out of time."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.message)
        self.result = result


class WorkerUnreachable(WorkerError):
    """Error for a worker that does not answer. `reason` is the last failure."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
