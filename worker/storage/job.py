"""A job: the record of one request, its states, and the table of legal state transitions. Pure: no clock, no disk.

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

from darkroom.contract.quality import DEFAULT_QUALITY, QualityName
from darkroom.contract.unit import UNIT_WORKLOAD
from darkroom.worker.engines.loss import Loss
from darkroom.worker.engines.preview_frames import PreviewFrame
from darkroom.worker.errors import WorkerError, http_status
from darkroom.worker.json.long import canonical_pieces
from darkroom.worker.json.values import JsonObject
from darkroom.worker.outputs.options import OutputOptions
from darkroom.worker.storage.progress import Progress

MAX_ATTEMPTS = 2

SPLIT = "split"
"""Entry of a job's tuning: the engines that its run had, and why not more."""

JobPhase = Literal["preprocess", "wait", "generation", "postprocess"]
WebhookEvent = Literal["queued", "started", "progress", "output"]
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
    """The position of a job within its state, which determines its recovery after a restart."""

    QUEUED = "queued"
    FETCHING = "fetching"
    WAITING = "waiting"  # for the engine, or in its queue: the loss of an engine here costs no attempt
    LOW_MEMORY_RETRY = "sparing"  # waiting to run again with less memory after it ran out of memory
    RUNNING = "running"  # the engine has started it
    DELIVERING = "delivering"
    DONE = "done"

    @property
    def is_wait_for_engine(self) -> bool:
        """True before an engine begins with a job whose inputs are there."""
        return self in (Stage.WAITING, Stage.LOW_MEMORY_RETRY)


class IllegalMove(Exception):
    """A programming error: a state transition that the table does not contain."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Secrets of a request that must not outlive its delivery. Excluded from all output."""

    stores: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of the stores that the request names, by the field of each."""
    webhook_secret: str | None = None
    download_headers: Mapping[str, Mapping[str, str]] | None = None
    partner_keys: Mapping[str, str] = field(default_factory=dict)
    """Keys for partner nodes, by their names in `extra_data`."""

    @property
    def is_empty(self) -> bool:
        """True if there is no secret."""
        return not (self.stores or self.webhook_secret or self.download_headers or self.partner_keys)

    def __repr__(self) -> str:
        return "Credentials(...)"


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """The recipient of a job's notice. `events`: the events to send besides its end."""

    url: str
    timeout_seconds: float
    extra_params: Mapping[str, Any]
    events: tuple[WebhookEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The request without secrets: everything a restart needs besides the prompt."""

    modifier: str = ""
    priority: int = 0
    wants_base64: bool = False
    wants_engine_response: bool = False
    webhook: WebhookTarget | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    output: OutputOptions = field(default_factory=OutputOptions)
    base_url: str = ""  # the URL that the caller used: the prefix of links in its webhook
    caller: str = ""  # the caller whose limits apply; empty: no limits
    traceparent: str = ""  # the trace that the job belongs to; empty: none
    warnings: tuple[Mapping[str, Any], ...] = ()  # what of the request has no effect, or another one than it seems
    quality: QualityName = DEFAULT_QUALITY
    timeout_seconds: float | None = None  # of its run on an engine; None: the worker's limit
    expires_seconds: float | None = None  # from its arrival until an engine begins; None: no limit
    wants_previews: bool = False  # images of unfinished latents in the job's streams
    receipt: str = ""  # the broker's delivery that the job came with; empty: it came by HTTP
    parameters: Mapping[str, Any] = field(default_factory=dict)  # what its caller chose, for the result
    deadline_ms: int | None = None  # epoch milliseconds by which the job is to have ended
    deadline_turn_ms: int | None = None  # its turn where the usual one would be too late for that
    is_split: bool = False  # its prompt may run on several engines at once
    engine: str = ""  # the engine that runs it; empty: one of ours
    engine_reason: str = ""  # why not one of ours


@dataclass(frozen=True, slots=True)
class JobFailure:
    """The reason why a job did not complete, as stored and shown. `status` is the HTTP status of `/result`."""

    status: int
    code: str
    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(error: WorkerError) -> JobFailure:
        return JobFailure(http_status(type(error)), error.code, error.message, dict(error.fields))

    def as_json(self) -> dict[str, object]:
        return {"status": self.status, "code": self.code, "message": self.message, **self.fields}


@dataclass(slots=True)
class JobTimes:
    """Timestamps of events in epoch milliseconds, and durations of the phases in milliseconds.

    `wait_ms` is the time before an engine began, `generation_ms` the time that engines worked, over all attempts.
    """

    queued_at_ms: int
    completed_at_ms: int | None = None
    preprocess_ms: int | None = None
    generation_ms: int | None = None
    postprocess_ms: int | None = None
    wait_ms: int | None = None

    @property
    def phase_ms(self) -> dict[str, int | None]:
        """Duration of each phase; None for a phase that the job did not have."""
        return {
            "preprocess": self.preprocess_ms,
            "wait": self.wait_ms,
            "generation": self.generation_ms,
            "postprocess": self.postprocess_ms,
        }

    def add(self, phase: JobPhase, milliseconds: int) -> None:
        """Add to the duration of a phase, which a job may pass through several times."""
        match phase:
            case "preprocess":
                self.preprocess_ms = (self.preprocess_ms or 0) + milliseconds
            case "wait":
                self.wait_ms = (self.wait_ms or 0) + milliseconds
            case "generation":
                self.generation_ms = (self.generation_ms or 0) + milliseconds
            case "postprocess":
                self.postprocess_ms = (self.postprocess_ms or 0) + milliseconds

    def as_json(self) -> dict[str, int | None]:
        total = None if self.completed_at_ms is None else max(0, self.completed_at_ms - self.queued_at_ms)
        return {
            "queued_at_ms": self.queued_at_ms,
            "preprocess_ms": self.preprocess_ms,
            "wait_ms": self.wait_ms,
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
    prompt: JsonObject
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
    tuning: Mapping[str, Any] = field(default_factory=dict)  # as reported by an engine of ours, and SPLIT
    progress: Progress = field(default_factory=Progress)  # not stored
    preview: PreviewFrame | None = None  # the newest, not stored
    is_recovered: bool = False
    is_at_engine: bool = False  # its prompt has been sent, so no other job overtakes it
    cost: float = UNIT_WORKLOAD  # recomputed after a restart
    began_at: float = 0.0  # monotonic clock: when the engine began, as far as is known
    run_seconds: float | None = None  # run time on the engine, without its queue; summed over engines
    needs_less_memory: bool = False  # it ran out of memory and runs again with less
    last_loss: Loss | None = None  # the last loss of an engine during its run
    runs_alone: bool = False  # it, or a prompt running beside it, made an engine hang
    turn_ms: int = 0  # set by the store, see `turn_ms_of`
    owner: str | None = ""  # the name of the key that sent it, empty for none; None in jobs older than ownership
    metadata: Mapping[str, Any] = field(default_factory=dict)  # the caller's, returned as it came
    asked_id: str = ""  # the requested id, if another caller's job has it
    num_preempted: int = 0  # since the front's start
    num_outside_losses: int = 0  # of engines during its runs, by causes outside of it
    is_handed_back: bool = False  # another worker has it, or will: it ends here without a result or a webhook

    @property
    def public_id(self) -> str:
        """The id under which the job's caller can refer to it."""
        return self.asked_id or self.id

    @property
    def prompt_id(self) -> str:
        again = f".{self.num_preempted}" if self.num_preempted else ""
        there = f".{self.request.engine}" if self.request.engine else ""
        return f"{self.id}-{self.attempt}{again}{there}"

    @property
    def order(self) -> tuple[int, int]:
        """The sort key of waiting jobs: the earlier turn, then the earlier arrival."""
        return self.turn_ms, self.number

    @property
    def waiting_stage(self) -> Stage:
        return Stage.LOW_MEMORY_RETRY if self.needs_less_memory else Stage.WAITING

    @property
    def http_status(self) -> int:
        """The HTTP status of a response that shows this job. It is 200 until the job has ended unsuccessfully."""
        return self.failure.status if self.failure is not None else 200

    def move_to(self, state: JobState, message: str, stage: Stage | None = None) -> None:
        """Change the state. Raises IllegalMove if the table does not contain the transition."""
        if state not in LEGAL_MOVES[self.state]:
            raise IllegalMove(f"{self.id}: {self.state} -> {state}")
        self.state = state
        self.note(message, Stage.DONE if state.is_terminal else stage)

    def note(self, message: str | None = None, stage: Stage | None = None) -> None:
        """Record a change other than one of state. It takes the next `seq`."""
        self.seq += 1
        if message is not None:
            self.message = message
        if stage is not None:
            self.stage = stage

    def end(self, state: JobState, message: str, at_ms: int, failure: JobFailure | None = None) -> None:
        """Make the last change of a job. Its credentials are cleared afterwards."""
        self.move_to(state, message)
        self.failure, self.preview = failure, None
        self.times.completed_at_ms = at_ms
        self.credentials = None

    def fail_unstored(self, failure: JobFailure) -> None:
        """Replace an end that could not be stored and that no client has seen. The job's secrets are cleared."""
        self.state, self.failure = JobState.FAILED, failure
        self.outputs, self.engine_response, self.tuning = (), {}, {}
        self.note(failure.message)

    def begin_retry(self, message: str) -> bool:
        """Start the next attempt without a change of the status. Returns False if no attempt is left."""
        if self.attempt >= MAX_ATTEMPTS:
            return False
        self.attempt += 1
        self.progress.begin_again()
        self.note(message, self.waiting_stage)
        return True


def body_hash(
    body_input: Mapping[str, object], wants_base64: bool, wants_engine_response: bool, *, is_large: bool = False
) -> str:
    """Return the SHA-256 of the canonical JSON of the request's `input` without its id, and of the two result headers.

    A large input, with images in it, is hashed in pieces, so that other threads can run in between.
    """
    plain = {key: value for key, value in body_input.items() if key != "request_id"}
    hashed = [plain, wants_base64, wants_engine_response]
    digest = sha256()
    for piece in canonical_pieces(hashed, CANONICAL) if is_large else (CANONICAL.encode(hashed).encode(),):
        digest.update(piece)
    return digest.hexdigest()
