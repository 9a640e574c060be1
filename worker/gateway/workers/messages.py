"""Messages between a gateway and the workers that ask it for jobs: bodies of requests and replies."""

from __future__ import annotations

import base64
import time
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, Field

from darkroom.worker.gateway.workers.desk import TakenJob
from darkroom.worker.gateway.workers.entries import Digest, WorkerEntry
from darkroom.worker.storage.job import JobState

MAX_MESSAGE: Final = 2000
Receipt = Annotated[str, Field(max_length=4096)]
Wait = Annotated[float, Field(ge=0, le=25)]


class Connected(BaseModel):
    """Reply to a worker that comes: the time for which jobs are its own without being renewed."""

    lease_seconds: float


class Wish(BaseModel):
    """Jobs that a worker has room for, and the model files that it used last."""

    most: Annotated[int, Field(ge=1, le=16)] = 1
    models: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=16)] = Field(default_factory=list)
    wait_seconds: Wait = 20.0


class Job(BaseModel):
    """A job that is given to a worker. Its body is in `body`, or in `packed_body` as base64 where it is no text."""

    id: str
    receipt: str
    body: str | None = None
    packed_body: str | None = None
    num_deliveries: int
    owner: str
    asked_id: str
    waited_ms: int | None
    """Time since it was queued, by the gateway's clock; null for unknown."""

    is_cancelled: bool

    @staticmethod
    def of(taken: TakenJob) -> Job:
        """Return a job as a worker gets it."""
        delivery = taken.delivery
        body, packed = None, None
        try:
            body = delivery.body.decode()
        except UnicodeDecodeError:
            packed = base64.b64encode(delivery.body).decode()
        waited_ms = max(0, round(time.time() * 1000) - delivery.queued_ms) if delivery.queued_ms else None
        return Job(
            id=delivery.job_id, receipt=taken.receipt, body=body, packed_body=packed, owner=delivery.owner,
            num_deliveries=delivery.num_deliveries, asked_id=delivery.asked_id, waited_ms=waited_ms,
            is_cancelled=taken.is_cancelled,
        )  # fmt: skip


class Jobs(BaseModel):
    """Jobs that are given to a worker."""

    jobs: list[Job]


class HeldJobs(BaseModel):
    """Jobs of a worker, by their receipts."""

    receipts: Annotated[list[Receipt], Field(max_length=1000)]
    wait_seconds: Wait = 0.0


class GivenBack(BaseModel):
    """A job that a worker does not run."""

    receipt: Receipt


class TakenBack(BaseModel):
    """Reply for a job that is given back. False: the broker has lost it, and no other worker will get it."""

    is_known: bool


class Event(BaseModel):
    """Progress of a job, as those that follow it get it."""

    id: Annotated[str, Field(max_length=1000)]
    status: JobState
    message: Annotated[str, AfterValidator(lambda text: text[:MAX_MESSAGE])]
    percent: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 0.0
    seq: Annotated[int, Field(ge=0)] = 0


class Progress(BaseModel):
    """Progress of a job that a worker holds."""

    receipt: Receipt
    event: Event


class DeadLetter(BaseModel):
    """A job that no worker can run: its message, the reason and its result."""

    body: str
    reason: Annotated[str, Field(max_length=200)]
    result: dict[str, Any]


class Announced(BaseModel):
    """Announcement of a worker. `lists`: node lists that the gateway asked for, packed, as base64."""

    entry: WorkerEntry
    lists: Annotated[dict[Digest, str], Field(max_length=2)] = Field(default_factory=dict)


class Wanted(BaseModel):
    """Node lists that an announcement is to have; none: it is made."""

    lists: list[str]


class NewToken(BaseModel):
    """Name of a token that is to be made."""

    name: str


class MadeToken(BaseModel):
    """A new token. Its secret is shown this once."""

    name: str
    token: str
