"""Declarations of routes for the OpenAPI document: refusals by status, streams and files, headers of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from darkroom.worker.api.replies.results import Result

Responses = dict[int | str, dict[str, Any]]

RETRY_AFTER: Final = {"Retry-After": {"description": "Seconds until the next try", "schema": {"type": "integer"}}}
REASONS: Final[Mapping[int, str]] = {
    401: "No key, or an unknown one",
    403: "The key lacks the scope, or the link is forged or expired",
    404: "Unknown id",
    409: "The id belongs to a request with another body",
    413: "The body is too large",
    415: "The body has a Content-Encoding that is not read",
    422: "The request is wrong: `error.problems` has every problem with its field or node",
    429: "A limit of the caller, or of the waiting time, is reached",
    499: "The job was cancelled",
    500: "A node failed, memory ran out, or the worker failed",
    502: "The engine does not answer, or was lost twice",
    503: "The worker takes no jobs now: starting, draining, its queue full, or disk or memory low",
    504: "The job ran longer than its time limit",
}
LATER: Final = frozenset({429, 503})
ENDINGS: Final = (422, 499, 500, 502, 504)
"""Statuses with which a job's result is returned, besides 200."""


def refusals(*codes: int, model: type[BaseModel] = Result) -> Responses:
    """Return the declarations of refusals, whose body is a result with `error`."""
    return {
        code: {"model": model, "description": REASONS[code], **({"headers": RETRY_AFTER} if code in LATER else {})}
        for code in codes
    }


SUBMISSION: Final = refusals(401, 403, 409, 413, 422, 429, 500, 502, 503)
"""Refusals of a route that creates jobs."""

EVENT_STREAM: Final[Responses] = {
    200: {
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
        "description": "Server-sent events: each `data` is a StreamEvent, the last one has the result",
    }
}
PLAIN_TEXT: Final[Responses] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus' text format"}
}
FILE: Final[Responses] = {
    200: {
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        "description": "The file, with its own content type",
    }
}


def _header(name: str, about: str) -> dict[str, object]:
    return {"name": name, "in": "header", "required": False, "description": about, "schema": {"type": "string"}}


SUBMISSION_HEADERS: Final[dict[str, Any]] = {
    "parameters": [
        _header("Idempotency-Key", "The job's id, in place of `request_id`; the same id and body never run twice"),
        _header("X-Return-Outputs-As-Base64", "`true`: the outputs' data are in the result"),
        _header("X-Include-ComfyUI-Response", "`true`: the engine's own reply is in the result"),
        _header("traceparent", "W3C trace context; the job's spans, engine request and webhooks continue it"),
    ]
}


def with_headers(operation: dict[str, Any], headers: Mapping[str, Any]) -> None:
    """Add header parameters to an operation of the document."""
    operation["parameters"] = [*operation.get("parameters", []), *headers["parameters"]]
