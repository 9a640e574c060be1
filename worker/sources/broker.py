"""A broker as the worker sees it: leased deliveries of jobs, results, events, cancellations.

A broker delivers at least once: a delivery whose lease is not renewed goes to another worker. The first result of a job
that reaches the broker is its only one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

FLEET_SECONDS = 60
"""Seconds after which a worker that has not announced itself again is gone."""


class BrokerUnreachable(Exception):
    """The broker does not answer. The message names the broker without its credentials."""


class BrokerRefused(BrokerUnreachable):
    """The broker takes this worker's credentials no longer: to ask again is of no use."""


class JobTooLarge(Exception):
    """A job that is larger than a message of the broker may be."""

    def __init__(self, size_bytes: int, max_bytes: int) -> None:
        super().__init__(f"got {size_bytes} bytes, expected at most {max_bytes}")
        self.size_bytes, self.max_bytes = size_bytes, max_bytes


@dataclass(frozen=True, slots=True)
class Delivery:
    """One job from a broker, leased to this worker.

    `job_id` is the producer's id of the job, by which duplicates are recognized; `body` the JSON of a generate request;
    `receipt` names the delivery to its broker, also after a restart; `num_deliveries` counts this one; `owner` is the
    name of the key that the gateway's caller used; `queued_ms` the time at which the job was queued, 0 for unknown;
    `asked_id` the id that the job has for its caller, empty for `job_id`.
    """

    job_id: str
    body: bytes
    receipt: str
    num_deliveries: int = 1
    owner: str = ""
    queued_ms: int = 0
    asked_id: str = ""


@dataclass(frozen=True, slots=True)
class News:
    """One event of one job, as every gateway reads it. `position` is its place among those of all jobs.

    The first answer to a reader without a position has no job: it is where the reader is to go on.
    """

    position: str
    job_id: str
    event: bytes


@dataclass(frozen=True, slots=True)
class StreamDepth:
    """Jobs of one stream that are queued or leased; `model` is "" for a stream of every worker."""

    priority: str
    model: str
    num_jobs: int


class Broker(Protocol):
    """The consumer's side. Every method raises BrokerUnreachable."""

    @property
    def name(self) -> str:
        """Kind and address, without credentials."""
        ...

    @property
    def lease_seconds(self) -> float:
        """Seconds for which jobs are this worker's without being renewed, once it is connected."""
        ...

    async def connect(self, consumer: str) -> None:
        """Connect as a consumer of this name, which a worker keeps over its restarts."""
        ...

    async def receive(self, most: int, models: Sequence[str], seconds: float | None = None) -> list[Delivery]:
        """Lease up to `most` jobs; waits some seconds for the first, at most `seconds` if they are given.

        `models` are file names, the last used first. Jobs for these models are preferred among those of one priority.
        """
        ...

    async def renew(self, receipts: Collection[str]) -> set[str]:
        """Extend the leases of deliveries and return the receipts that are still this worker's.

        They include jobs that the broker has lost, which have no result and no other worker.
        """
        ...

    async def finish(self, job_id: str, receipt: str, result: bytes) -> None:
        """Store the result of a job, unless it has one, and remove the job from the queue."""
        ...

    async def bury(self, delivery: Delivery, reason: str, result: bytes) -> None:
        """Finish a job and keep its message among the dead letters."""
        ...

    async def give_back(self, receipt: str) -> bool:
        """End a lease now, so that another worker can take the job. The delivery does not count.

        Returns False if the broker has lost the job: then no other worker will take it.
        """
        ...

    async def cancelled(self, job_ids: Collection[str]) -> set[str]:
        """Return those of the jobs whose cancellation was requested."""
        ...

    async def publish(self, job_id: str, event: bytes) -> None:
        """Publish progress of a job to those that follow it. Losing one does no harm."""
        ...

    async def announce(self, entry: bytes, lists: Mapping[str, bytes]) -> None:
        """Publish that this worker is there, and the packed node lists of its engines; repeated within FLEET_SECONDS.

        `lists` are by the digests that the entry has.
        """
        ...

    async def close(self) -> None: ...


class Producer(Protocol):
    """The producer's side. Every method raises BrokerUnreachable."""

    @property
    def name(self) -> str:
        """Kind and address, without credentials."""
        ...

    async def put(
        self, job_id: str, body: bytes, *, priority: int = 0, model: str = "", owner: str = "", asked_id: str = ""
    ) -> bool:
        """Queue a job. Returns False for an id that is known already: nothing is queued then. Raises JobTooLarge."""
        ...

    async def cancel(self, job_id: str) -> None:
        """Request the cancellation of a job, wherever it is."""
        ...

    async def result(self, job_id: str) -> bytes | None:
        """Return the result of a job that has ended."""
        ...

    async def result_sizes(self, job_ids: Sequence[str]) -> dict[str, int]:
        """Return the bytes of the results of those of the jobs that have ended."""
        ...

    async def settle(self, job_id: str, result: bytes) -> None:
        """Store a result for a job that no worker has, unless there is one."""
        ...

    async def fleet(self) -> list[bytes]:
        """Return the entries of the workers that are there; without any, that of the last one, marked `is_last`."""
        ...

    async def nodes(self, nodes_id: str) -> bytes | None:
        """Return a packed node list."""
        ...

    async def publish(self, job_id: str, event: bytes) -> None:
        """Publish progress of a job that no worker has to those that follow it."""
        ...

    async def events(self, job_id: str) -> list[bytes]:
        """Return the events of a job that are kept, the newest last."""
        ...

    async def news(self, after: str, wait_seconds: float) -> list[News]:
        """Return events of all jobs after a position, waiting for the first; the position of now for "".

        A reader that is far behind misses some.
        """
        ...

    async def depths(self) -> list[StreamDepth]:
        """Return the jobs of each stream."""
        ...

    async def depth(self) -> int:
        """Return the number of jobs that are queued or leased."""
        ...

    async def close(self) -> None: ...
