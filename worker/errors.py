"""Errors of the front, grouped by who must act, and the only table from error class to HTTP status.

    WorkerError
      CallerError                 the request is wrong; sending it again unchanged is useless
        RequestRejected           body, modifier or workflow: every problem with its field or node id
        InputRejected             an input the request names cannot be fetched or used (URL, size, type, address)
        ModelUnavailable          a model file the workflow names cannot be fetched: no access, absent, broken
        JobNotFound               no job has that id
        RequestIdConflict         the id is taken by a request with another body
        JobNotEnded               the job is live and cannot be deleted
        AssetNotFound             no asset of the caller has that id or content
        HashMismatch              an uploaded file has another hash than its sender says
        WebhookNotFound           no webhook has that id
        WorkflowNotFound          no stored workflow has that name or version
        WebhookNotReady           the webhook cannot be sent again as it is
        Unauthorized              no credential
          WrongKey                an unknown API key
        Forbidden                 a foreign page, or a link that is forged or expired
          ScopeMissing            an API key without the required scope
        RequestTooLarge           the body is over MAX_REQUEST_BYTES
        EncodingUnsupported       the body has a Content-Encoding that is not read
        SessionGone               Vast's session id is unknown
      TryLater                    the request is fine; send it again after `retry_after_seconds`
        QueueFull, DiskLow, DatabaseUnreachable, MemoryLow, NotReady, Draining, WaitTooLong, TooManySessions,
        TooManyConnections
        LimitReached              a limit of the caller's key or address is reached
      RunError                    this job failed, the worker is fine
        NodeFailed                a node raised
        EngineHung                a node made no progress, answered nothing or did not stop: the engine was replaced
        OutOfMemory               the device had too little memory, also on the retry
          EngineOutOfMemory       the machine had too little: the kernel killed the engine's process
        JobTimedOut, JobCancelled
        JobExpired                no engine began within the time that the request allows
        NothingMade               the run ended well and left no output: the workflow saves nothing
        OutputsTooLarge           the outputs are over PROMPT_MAX_OUTPUT_BYTES together
        DeliveryFailed            no output could be delivered at all
      PlatformError               the engine or the machine, not the job
        EngineUnreachable         the engine does not answer, or was lost twice during one job
          EngineAnswerInvalid     the engine answers something that no engine answers
          EngineCrashed           its process ended during the job, twice
          DeviceLost              the accelerator failed under the job, twice
        TooManyDeliveries         every worker that a broker gave the job to was lost
        EngineStartFailed         the engine's process ended before it answered
        ModelSourceFailed         no source of a model file could be reached, or the download broke off
        StateUnusable             the state directory or database cannot be used (locked by another front, not writable)
          StateTakenOver          another worker has taken this one's jobs
        SubmissionFailed          an internal error before there was a job
        SettingsInvalid           a setting does not parse

Every class has a stable `code`; `fields` are what a client can act on. No error may contain a secret.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


class WorkerError(Exception):
    """Base of the front's errors. `message` is for people, `fields` for programs; both are shown to the caller."""

    code: ClassVar[str] = "worker_error"

    def __init__(self, message: str, **fields: object) -> None:
        super().__init__(message)
        self.message = message
        self.fields: dict[str, Any] = fields

    def as_json(self) -> dict[str, object]:
        return {"code": self.code, "message": self.message, **self.fields}


class CallerError(WorkerError):
    code = "caller_error"


MAX_SHOWN_LENGTH = 2000
MAX_SHOWN_ITEMS = 50
MAX_SHOWN_DEPTH = 20
MAX_PROBLEMS = 100
MAX_ALLOWED_ITEMS = 20_000  # choices listed in one refusal, over all its problems
PLACES = ("input.modifications.", "input.", "query.")


def shortened(value: object, depth: int = MAX_SHOWN_DEPTH) -> object:
    """Shorten a JSON value from a request for a reply: long texts, lists and deep values are cut."""
    if isinstance(value, str) and len(value) > MAX_SHOWN_LENGTH:
        return f"{value[:MAX_SHOWN_LENGTH]}... ({len(value)} characters)"
    if depth == 0 and isinstance(value, list | tuple | Mapping):
        return "..."
    if isinstance(value, list | tuple):
        return [shortened(item, depth - 1) for item in value[:MAX_SHOWN_ITEMS]]
    if isinstance(value, Mapping):
        return {key: shortened(item, depth - 1) for key, item in list(value.items())[:MAX_SHOWN_ITEMS]}
    return value


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem of a request: its place (`field` of the body, or a node and its input), the error, the allowed values."""

    message: str
    field: str | None = None
    node_id: str | None = None
    class_type: str | None = None
    type: str | None = None
    allowed: Any = None
    extra: Mapping[str, Any] | None = None

    @property
    def sentence(self) -> str:
        """Message, preceded by the field's name if it refers to a field of the request without naming it."""
        field = self.field or ""
        name = next((field.removeprefix(place) for place in PLACES if field.startswith(place)), field)
        names_field = name == field or name in self.message
        return str(shortened(self.message if names_field else f"{name}: {self.message}"))

    def as_json(self) -> dict[str, object]:
        shown = {
            "field": self.field,
            "node_id": self.node_id,
            "class_type": self.class_type,
            "type": self.type,
            "message": shortened(self.message),
            "allowed": self.allowed,
            "extra": shortened(self.extra) if self.extra else None,
        }
        return {key: value for key, value in shown.items() if value is not None}


class RequestRejected(CallerError):
    """Error for an invalid body, modifier or workflow.

    Holds the first `MAX_PROBLEMS` problems, at least one; `num_unlisted` is the number of the others. `fields`:
    problems, and unlisted_problems where there are some. `message` is a summary of all problems, by default the first.
    """

    code = "request_rejected"

    def __init__(self, problems: Sequence[Problem], message: str | None = None, num_unlisted: int = 0) -> None:
        self.problems = tuple(problems[:MAX_PROBLEMS])
        self.summary = message
        self.num_unlisted = num_unlisted + max(0, len(problems) - MAX_PROBLEMS)
        num_more = len(self.problems) + self.num_unlisted - 1
        more = f" (and {num_more} more)" if num_more > 0 else ""
        super().__init__(
            message or (f"{self.problems[0].sentence}{more}" if self.problems else "The request is not valid"),
            problems=_shown(self.problems),
            **({"summary": message} if message else {}),
            **({"unlisted_problems": self.num_unlisted} if self.num_unlisted else {}),
        )


def _shown(problems: Sequence[Problem]) -> list[dict[str, object]]:
    """Return problems as JSON; if they have very many choices together, the later ones list only their first ones."""
    shown, num_allowed = [], 0
    for problem in problems:
        item = problem.as_json()
        if isinstance(problem.allowed, list):
            num_allowed += len(problem.allowed)
            if num_allowed > MAX_ALLOWED_ITEMS:
                item["allowed"] = shortened(problem.allowed)
        shown.append(item)
    return shown


class InputRejected(CallerError):
    """Error for an input file that cannot be fetched or used. `fields` may name `url`, `node_id`, `limit_bytes`..."""

    code = "input_rejected"


class ModelUnavailable(CallerError):
    """Error for a model file that no source gives. `fields`: model, reason, node_id, class_type, field."""

    code = "model_unavailable"


class JobNotFound(CallerError):
    code = "job_not_found"


class RouteNotFound(CallerError):
    code = "route_not_found"


class MethodNotAllowed(CallerError):
    """Error for a method that the route does not have. `fields`: allowed, the methods that it has."""

    code = "method_not_allowed"


class RequestIdConflict(CallerError):
    code = "request_id_conflict"


class RequestIdTaken(RequestIdConflict):
    """Error for the id of another caller's job, which is not described."""


class JobNotEnded(CallerError):
    code = "job_not_ended"


class WebhookNotFound(CallerError):
    code = "webhook_not_found"


class AssetNotFound(CallerError):
    code = "asset_not_found"


class HashMismatch(CallerError):
    code = "hash_mismatch"


class WorkflowNotFound(CallerError):
    """Error for an unknown stored workflow. `fields`: nearest, a name that exists."""

    code = "workflow_not_found"


class WebhookNotReady(CallerError):
    code = "webhook_not_ready"


class WorkerTokenNotFound(CallerError):
    code = "worker_token_not_found"


class ReceiptUnknown(CallerError):
    """Error for a receipt of a job that was not given to this worker, or that has been given to another."""

    code = "receipt_unknown"


class Unauthorized(CallerError):
    code = "unauthorized"


class WrongKey(Unauthorized):
    """Error for an unknown key."""

    code = "invalid_key"


class Forbidden(CallerError):
    code = "forbidden"


class ScopeMissing(Forbidden):
    """Error for a key without the required scope. `fields`: scope, the right that the key lacks."""

    code = "insufficient_scope"


class RequestTooLarge(CallerError):
    code = "request_too_large"


class EncodingUnsupported(CallerError):
    """Error for a Content-Encoding that is not read. `fields`: field, allowed."""

    code = "encoding_unsupported"


class SessionGone(CallerError):
    code = "session_gone"


class TryLater(WorkerError):
    code = "try_later"

    def __init__(self, message: str, *, retry_after_seconds: float = 5.0, **fields: object) -> None:
        super().__init__(message, retry_after_seconds=retry_after_seconds, **fields)
        self.retry_after_seconds = retry_after_seconds


class QueueFull(TryLater):
    code = "queue_full"


class DiskLow(TryLater):
    code = "disk_low"


class DatabaseUnreachable(TryLater):
    code = "database_unreachable"


class MemoryLow(TryLater):
    code = "memory_low"


class NotReady(TryLater):
    """Error while the engine is not up yet, or the start-up benchmark has not passed."""

    code = "not_ready"


class Draining(TryLater):
    code = "draining"


class WaitTooLong(TryLater):
    code = "wait_too_long"


class TooManySessions(TryLater):
    """Error when as many of the platform's sessions are open as may be."""

    code = "too_many_sessions"


class LimitReached(TryLater):
    """Error for a limit of the caller's key or address. `fields`: limit (its name), value, allowed."""

    code = "limit_reached"

    def __init__(self, limit: str, value: int, allowed: int, *, retry_after_seconds: float, unit: str = "") -> None:
        more = f" {unit}" if unit else ""
        message = f"{limit}: the limit of this key or address is reached; got {value}, expected at most {allowed}{more}"
        super().__init__(message, retry_after_seconds=retry_after_seconds, limit=limit, value=value, allowed=allowed)


class TooManyConnections(TryLater):
    """Error when as many connections are open as MAX_CONNECTIONS allows, to all or to one address."""

    code = "too_many_connections"


class RunError(WorkerError):
    code = "run_error"


class NodeFailed(RunError):
    """Error raised by a node. `fields`: node_id, class_type, error_type (the exception's name in the engine)."""

    code = "node_failed"


class EngineHung(RunError):
    """Error when the job made its engine hang; it is not run again. `fields`: reason, node_id, class_type."""

    code = "engine_hung"


class OutOfMemory(RunError):
    code = "out_of_memory"


class EngineOutOfMemory(OutOfMemory):
    code = "engine_out_of_memory"


class JobTimedOut(RunError):
    code = "job_timed_out"


class JobExpired(RunError):
    """Error for a job with `expires` that no engine began in time. `fields`: expires (seconds)."""

    code = "job_expired"


class JobCancelled(RunError):
    code = "job_cancelled"


class NothingMade(RunError):
    code = "nothing_made"


class OutputsTooLarge(RunError):
    """Error for outputs over the limit. `fields`: node_id (of the output that exceeded it), value, allowed (bytes)."""

    code = "outputs_too_large"


class DeliveryFailed(RunError):
    code = "delivery_failed"


class PlatformError(WorkerError):
    code = "platform_error"


class EngineUnreachable(PlatformError):
    code = "engine_unreachable"


class EngineAnswerInvalid(EngineUnreachable):
    """Error for an answer of an engine that cannot be used. `fields`: route, the method and path that was asked."""

    code = "engine_answer_invalid"


class EngineCrashed(EngineUnreachable):
    code = "engine_crashed"


class DeviceLost(EngineUnreachable):
    code = "device_lost"


class TooManyDeliveries(PlatformError):
    """Error for a broker's job that was delivered as often as it may be, each time to a worker that was lost."""

    code = "too_many_deliveries"


class EngineStartFailed(PlatformError):
    code = "engine_start_failed"


class ModelSourceFailed(PlatformError):
    """Error for sources of a model file that do not answer, or break off. `fields` as of ModelUnavailable."""

    code = "model_source_failed"


class StateUnusable(PlatformError):
    code = "state_unusable"


class StateTakenOver(StateUnusable):
    """Error when another worker has taken the database."""

    code = "state_taken_over"


class SubmissionFailed(PlatformError):
    code = "internal_error"


class SettingsInvalid(PlatformError):
    code = "settings_invalid"


HTTP_STATUS: Mapping[type[WorkerError], int] = {
    RequestRejected: 422,
    InputRejected: 422,
    ModelUnavailable: 422,
    JobNotFound: 404,
    RouteNotFound: 404,
    MethodNotAllowed: 405,
    RequestIdConflict: 409,
    JobNotEnded: 409,
    WebhookNotFound: 404,
    WebhookNotReady: 409,
    WorkflowNotFound: 404,
    AssetNotFound: 404,
    WorkerTokenNotFound: 404,
    ReceiptUnknown: 404,
    HashMismatch: 409,
    Unauthorized: 401,
    Forbidden: 403,
    RequestTooLarge: 413,
    EncodingUnsupported: 415,
    SessionGone: 410,
    QueueFull: 503,
    DiskLow: 503,
    DatabaseUnreachable: 503,
    MemoryLow: 503,
    NotReady: 503,
    Draining: 503,
    WaitTooLong: 429,
    TooManySessions: 429,
    LimitReached: 429,
    TooManyConnections: 503,
    NodeFailed: 500,
    EngineHung: 500,
    OutOfMemory: 500,
    JobTimedOut: 504,
    JobExpired: 504,
    JobCancelled: 499,
    NothingMade: 422,
    OutputsTooLarge: 422,
    DeliveryFailed: 500,
    EngineUnreachable: 502,
    TooManyDeliveries: 500,
    EngineStartFailed: 502,
    ModelSourceFailed: 502,
    StateUnusable: 500,
    SubmissionFailed: 500,
    SettingsInvalid: 500,
}
"""HTTP status by error class; a subclass without a row has its nearest ancestor's."""


def http_status(error_class: type[WorkerError]) -> int:
    """Return the status of the nearest class with a row. Raises KeyError if none has one (tests check all classes)."""
    for ancestor in error_class.__mro__:
        status = HTTP_STATUS.get(ancestor)
        if status is not None:
            return status
    raise KeyError(error_class)


def http_status_for_vast(status: int) -> int:
    """Return the status for Vast's client, which repeats every 5xx forever: 422 for a job that failed permanently."""
    return 422 if status in (500, 504) else status


def error_codes() -> list[str]:
    """Return the code of every error, sorted."""
    classes, codes = [WorkerError], set()
    while classes:
        found = classes.pop()
        codes.add(found.code)
        classes += found.__subclasses__()
    return sorted(codes)
