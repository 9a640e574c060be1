"""A job: the front's record of one request, its states and the one table of legal moves. Pure: no clock, no disk.

    pending -> processing -> generating -> generated -> completed
       any of them but the last may also end in failed, cancelled or timeout

The public status only moves forward. A retry changes `attempt` and `stage`, never the status. Every change takes the
job's next `seq`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any, Literal

from worker.engine.loss import Loss
from worker.errors import WorkerError, http_status
from worker.jobs.cost import UNIT_COST
from worker.jobs.progress import Progress
from worker.long_json import canonical_pieces
from worker.outputs.options import OutputOptions

MAX_ATTEMPTS = 2
MIN_PRIORITY, MAX_PRIORITY = -10, 10
DEFAULT_PRIORITY_STEP_SECONDS = 60.0

WebhookEvent = Literal["started", "progress"]
CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


class JobState(StrEnum):
    PENDING = "pending"
    PROCESSING = "processing"
    GENERATING = "generating"
    GENERATED = "generated"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"

    @property
    def is_terminal(self) -> bool:
        return not LEGAL_MOVES[self]


ENDINGS = frozenset({JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT})

LEGAL_MOVES: Mapping[JobState, frozenset[JobState]] = {
    JobState.PENDING: ENDINGS | {JobState.PROCESSING},
    JobState.PROCESSING: ENDINGS | {JobState.GENERATING},
    JobState.GENERATING: ENDINGS | {JobState.GENERATED},
    JobState.GENERATED: ENDINGS | {JobState.COMPLETED},
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
    JobState.TIMEOUT: frozenset(),
}


class Stage(StrEnum):
    """Where a job is inside its state; what a restart does with it depends on this."""

    QUEUED = "queued"
    FETCHING = "fetching"
    WAITING = "waiting"  # for the engine, or in its queue: losing the engine here costs no attempt
    SPARING = "sparing"  # waiting once more after it ran out of memory, to run with less
    RUNNING = "running"  # the engine has started it
    DELIVERING = "delivering"
    DONE = "done"


class IllegalMove(Exception):
    """A programming error: the state machine was asked for a move that its table does not have."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request brought along that must not outlive its delivery. Shown nowhere."""

    s3: Mapping[str, Any] | None = None
    webhook_secret: str | None = None

    def __repr__(self) -> str:
        return "Credentials(...)"


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """Where the notice of a job goes. `events`: what is told besides its end."""

    url: str
    timeout_seconds: float
    extra_params: Mapping[str, Any]
    events: tuple[WebhookEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What was asked, without secrets: everything a restart needs besides the prompt."""

    modifier: str = ""
    priority: int = 0
    wants_base64: bool = False
    wants_engine_response: bool = False
    webhook: WebhookTarget | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    output: OutputOptions = field(default_factory=OutputOptions)
    base_url: str = ""  # under which the caller reached us: links in its webhook begin so
    caller: str = ""  # whose limits count it; empty: nobody's


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Why a job did not complete, as stored and shown. `status` is the HTTP status that `/result` answers."""

    status: int
    code: str
    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(error: WorkerError) -> JobFailure:
        return JobFailure(http_status(type(error)), error.code, error.message, dict(error.fields))

    def as_json(self) -> dict[str, Any]:
        return {"status": self.status, "code": self.code, "message": self.message, **self.fields}


@dataclass(slots=True)
class JobTimes:
    """Epoch milliseconds of what happened, and how long each part took in milliseconds."""

    queued_at_ms: int
    completed_at_ms: int | None = None
    preprocess_ms: int | None = None
    generation_ms: int | None = None
    postprocess_ms: int | None = None

    def as_json(self) -> dict[str, int | None]:
        total = None if self.completed_at_ms is None else max(0, self.completed_at_ms - self.queued_at_ms)
        return {
            "queued_at_ms": self.queued_at_ms,
            "preprocess_ms": self.preprocess_ms,
            "generation_ms": self.generation_ms,
            "postprocess_ms": self.postprocess_ms,
            "completed_at_ms": self.completed_at_ms,
            "total_ms": total,
        }


@dataclass(slots=True)
class Job:
    id: str
    number: int
    body_hash: str
    request: JobRequest
    prompt: Mapping[str, Any]
    times: JobTimes
    credentials: Credentials | None = None
    state: JobState = JobState.PENDING
    stage: Stage = Stage.QUEUED
    attempt: int = 1
    seq: int = 0
    message: str = "Request accepted"
    outputs: tuple[Mapping[str, Any], ...] = ()
    engine_response: Mapping[str, Any] = field(default_factory=dict)
    failure: JobFailure | None = None
    progress: Progress = field(default_factory=Progress)  # not stored
    is_recovered: bool = False
    is_at_engine: bool = False  # its prompt has been handed over, so no other overtakes it any more
    cost: float = UNIT_COST  # computed anew after a restart
    began_at: float = 0.0  # monotonic clock: when the engine began, as far as is known
    run_seconds: float | None = None  # how long the engine was at it, its queue not counted
    is_sparing: bool = False  # memory was short: it runs once more with less
    last_loss: Loss | None = None  # of the engine, while it ran
    runs_alone: bool = False  # it or a prompt beside it made an engine hang
    turn_ms: int = 0  # given by the store, see `turn_ms_of`
    owner: str | None = ""  # the name of the key that sent it, empty for none; None in jobs older than ownership
    asked_id: str = ""  # the id that its caller asked for, where another caller's job has that

    @property
    def public_id(self) -> str:
        """The id under which its caller knows the job."""
        return self.asked_id or self.id

    @property
    def prompt_id(self) -> str:
        return f"{self.id}-{self.attempt}"

    @property
    def order(self) -> tuple[int, int]:
        """Sorts waiting jobs: whose turn is earlier, then who came first."""
        return self.turn_ms, self.number

    @property
    def waiting_stage(self) -> Stage:
        return Stage.SPARING if self.is_sparing else Stage.WAITING

    @property
    def http_status(self) -> int:
        """The status of a reply that shows this job. 200 until it has ended badly."""
        return self.failure.status if self.failure is not None else 200

    def move_to(self, state: JobState, message: str, stage: Stage | None = None) -> None:
        """Changes the state. Raises IllegalMove when the table has no such move."""
        if state not in LEGAL_MOVES[self.state]:
            raise IllegalMove(f"{self.id}: {self.state} -> {state}")
        self.state = state
        self.note(message, Stage.DONE if state.is_terminal else stage)

    def note(self, message: str | None = None, stage: Stage | None = None) -> None:
        """A change that is not one of state: takes the next `seq`."""
        self.seq += 1
        if message is not None:
            self.message = message
        if stage is not None:
            self.stage = stage

    def end(self, state: JobState, message: str, at_ms: int, failure: JobFailure | None = None) -> None:
        """The last change of a job. Its credentials are gone afterwards."""
        self.move_to(state, message)
        self.failure = failure
        self.times.completed_at_ms = at_ms
        self.credentials = None

    def fail_unstored(self, failure: JobFailure) -> None:
        """In place of an end that could not be stored, and that nobody has seen: what it brought is let go."""
        self.state, self.failure = JobState.FAILED, failure
        self.outputs, self.engine_response = (), {}
        self.note(failure.message)

    def begin_retry(self, message: str) -> bool:
        """Takes the next attempt, the status staying as it is. False when there is none left."""
        if self.attempt >= MAX_ATTEMPTS:
            return False
        self.attempt += 1
        self.progress.begin_again()
        self.note(message, self.waiting_stage)
        return True


def turn_ms_of(since_ms: int, priority: int, step_ms: int) -> int:
    """A job's place in time: as if it had come earlier by a step for each degree of its priority.

    So a higher priority overtakes, and yet nobody waits for ever: after a while what comes with the highest priority
    has a later turn than what has waited with the lowest. The order of two jobs never changes.
    """
    return since_ms - priority * step_ms


def body_hash(
    body_input: Mapping[str, Any], wants_base64: bool, wants_engine_response: bool, *, is_large: bool = False
) -> str:
    """SHA-256 of the canonical JSON of the request's `input` without its id, and of the two result headers.

    A large one, with pictures in it, is taken piece by piece, so that other threads get their turn.
    """
    plain = {key: value for key, value in body_input.items() if key != "request_id"}
    hashed = [plain, wants_base64, wants_engine_response]
    digest = sha256()
    for piece in canonical_pieces(hashed, CANONICAL) if is_large else (CANONICAL.encode(hashed).encode(),):
        digest.update(piece)
    return digest.hexdigest()
