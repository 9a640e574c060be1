"""WorkerDesk: gives jobs to workers that ask for them over HTTP, and takes their results, at the gateway's broker.

A worker has no credentials of the broker: the gateway acts in its name, and each call about a job names it by the
receipt that the worker got with it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
import structlog

from darkroom.worker.concurrency.background_tasks import BackgroundTasks
from darkroom.worker.errors import DatabaseUnreachable, ReceiptUnknown
from darkroom.worker.gateway.job_records import JobRecords
from darkroom.worker.gateway.result_memory import ResultMemory
from darkroom.worker.gateway.workers.brokers import Worker, WorkerBrokers
from darkroom.worker.gateway.workers.cancellations import Cancellations
from darkroom.worker.gateway.workers.entries import WorkerEntry
from darkroom.worker.gateway.workers.receipts import GivenJob, Receipts
from darkroom.worker.sources.broker import Broker, BrokerUnreachable, Delivery
from darkroom.worker.storage.database import FACTS

KEY_FACT: Final = "receipt_key"
KEY_BYTES: Final = 32
LISTED_SECONDS: Final = 600.0
"""Seconds for which a node list that was stored is not asked for again; the broker keeps it for a day."""

MAX_REPLIES_BYTES: Final = 128 * 1024 * 1024
REPLY_COPIES: Final = 3
"""A reply with jobs as it was read, as JSON, and in its bytes."""

MAX_REPLY_BYTES: Final = 32 * 1024 * 1024
"""Bytes of the bodies of jobs in one reply; the first may be larger."""

log = structlog.get_logger("gateway")


@dataclass(frozen=True, slots=True)
class TakenJob:
    """A job for a worker, with its signed receipt. `is_cancelled`: it is to end before it begins."""

    delivery: Delivery
    receipt: str
    is_cancelled: bool


@dataclass(eq=False, slots=True)
class _Poll:
    """Poll of one worker: jobs on their way to it, and the event that ends the wait of the request that gets them."""

    receiving: asyncio.Future[list[TakenJob]] | None = None
    ended: asyncio.Event | None = None

    def begin(self) -> asyncio.Event:
        """End the wait of an earlier request, and return what ends that of the new one."""
        if self.ended is not None:
            self.ended.set()
        self.ended = asyncio.Event()
        return self.ended


class WorkerDesk:
    """Owner of what a gateway does for workers. Methods raise BrokerUnreachable, and ReceiptUnknown for other jobs."""

    def __init__(self, records: JobRecords, make_broker: Callable[[], Broker], lease_seconds: float) -> None:
        self.lease_seconds = lease_seconds
        self.replies = ResultMemory(MAX_REPLIES_BYTES, REPLY_COPIES)
        """Memory of the replies that are written now: results wait for another one."""
        self._records = records
        self._brokers = WorkerBrokers(make_broker)
        self._cancellations = Cancellations(make_broker())
        self._tasks = BackgroundTasks(_report_failure)
        self._polls: dict[Worker, _Poll] = {}
        self._receipts: Receipts | None = None
        self._listed_until: dict[str, float] = {}  # node lists at the broker, and when they are to be sent again

    async def close(self) -> None:
        """Give back what is on its way to workers that have gone, and disconnect."""
        await self._tasks.close()
        await self._cancellations.close()
        await self._brokers.close()

    async def connect(self, worker: Worker) -> None:
        """Open the connection to the broker in a worker's name."""
        async with self._brokers.using(worker):
            pass

    async def take(
        self, worker: Worker, most: int, models: Sequence[str], seconds: float, gone: Coroutine[Any, Any, None]
    ) -> list[TakenJob]:
        """Lease up to `most` jobs to a worker, as soon as there is one; none after this time.

        `gone` is done once the worker has left: what comes for it then is given back. A worker has one poll at a time:
        an earlier request of it gets none, and this one what was asked for it.
        """
        until = time.monotonic() + seconds
        poll = self._polls.setdefault(worker, _Poll())
        ours = poll.begin()
        leaving, ending = asyncio.create_task(gone), asyncio.create_task(ours.wait())
        try:
            while True:
                receiving = poll.receiving
                if receiving is None:
                    receiving = poll.receiving = asyncio.ensure_future(
                        self._received(worker, most, models, max(0.0, until - time.monotonic()))
                    )
                waited: set[asyncio.Future[Any]] = {receiving, leaving, ending}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if ending.done() or leaving.done():
                    return []
                poll.receiving = None
                found = receiving.result()
                if found or time.monotonic() >= until:
                    return found
        finally:
            leaving.cancel()
            ending.cancel()
            self._end_poll(worker, poll, ours)

    def _end_poll(self, worker: Worker, poll: _Poll, ours: asyncio.Event) -> None:
        """Leave a poll, unless a later request of its worker has it by now."""
        if poll.ended is not ours:
            return
        poll.ended = None
        if poll.receiving is not None:
            self._tasks.spawn(self._returned(worker, poll, poll.receiving), "gateway-leaving-worker")
        else:
            self._polls.pop(worker, None)

    async def give_all_back(self, worker: Worker, taken: Sequence[TakenJob]) -> None:
        """Give back jobs that do not get to their worker."""
        async with self._brokers.using(worker) as broker:
            for job in taken:
                await broker.give_back(job.delivery.receipt)

    async def renew(self, worker: Worker, receipts: Collection[str]) -> set[str]:
        """Extend leases and return the receipts that are still the worker's."""
        sealer = await self.sealer()
        given = {text: found for text in receipts if (found := sealer.opened(worker.name, text)) is not None}
        async with self._brokers.using(worker) as broker:
            ours = await broker.renew({found.receipt for found in given.values()})
        return {text for text, found in given.items() if found.receipt in ours}

    async def finish(self, worker: Worker, receipt: str, result: bytes) -> None:
        """Store a result, unless the job has one, and remove the job. The same again changes nothing."""
        given = await self.given(worker, receipt)
        async with self._brokers.using(worker) as broker:
            await broker.finish(given.job_id, given.receipt, result)

    async def bury(self, worker: Worker, receipt: str, body: bytes, reason: str, result: bytes) -> None:
        """Finish a job that no worker can run, and keep its message among the dead letters."""
        given = await self.given(worker, receipt)
        async with self._brokers.using(worker) as broker:
            await broker.bury(Delivery(given.job_id, body, given.receipt), reason, result)

    async def give_back(self, worker: Worker, receipt: str) -> bool:
        """End a lease now. Returns False if the broker has lost the job."""
        given = await self.given(worker, receipt)
        async with self._brokers.using(worker) as broker:
            return await broker.give_back(given.receipt)

    async def publish(self, worker: Worker, receipt: str, event: bytes) -> None:
        """Publish progress of a job to those that follow it."""
        given = await self.given(worker, receipt)
        async with self._brokers.using(worker) as broker:
            await broker.publish(given.job_id, event)

    async def cancelled(self, worker: Worker, receipts: Collection[str], seconds: float) -> set[str]:
        """Return the receipts of cancelled jobs as soon as there is one, none after this time."""
        sealer = await self.sealer()
        jobs = {text: found.job_id for text in receipts if (found := sealer.opened(worker.name, text)) is not None}
        cancelled = await self._cancellations.wait(jobs.values(), seconds)
        return {text for text, job_id in jobs.items() if job_id in cancelled}

    async def announce(self, worker: Worker, entry: WorkerEntry, lists: Mapping[str, bytes]) -> list[str]:
        """Announce a worker; return the node lists of its entry that are to be sent along, if there are any.

        `lists` are by their digests, which have been checked.
        """
        now = time.monotonic()
        lacking = [name for name in entry.lists if name not in lists and now > self._listed_until.get(name, 0.0)]
        if not lacking:
            async with self._brokers.using(worker) as broker:
                await broker.announce(entry.as_bytes(worker.name), lists)
            kept = {name: until for name, until in self._listed_until.items() if until > now}
            self._listed_until = kept | dict.fromkeys(lists, now + LISTED_SECONDS)
        return lacking

    async def _received(self, worker: Worker, most: int, models: Sequence[str], seconds: float) -> list[TakenJob]:
        sealer = await self.sealer()
        async with self._brokers.using(worker) as broker:
            deliveries, surplus = within_bytes(await broker.receive(most, models, seconds))
            for one in surplus:
                await broker.give_back(one.receipt)
            cancelled = await broker.cancelled([one.job_id for one in deliveries]) if deliveries else set()
        return [
            TakenJob(
                delivery,
                sealer.sealed(worker.name, GivenJob(delivery.job_id, delivery.receipt)),
                delivery.job_id in cancelled,
            )
            for delivery in deliveries
        ]

    async def _returned(self, worker: Worker, poll: _Poll, receiving: asyncio.Future[list[TakenJob]]) -> None:
        """Give back what comes for a worker that has left. What fails here comes back when its lease runs out."""
        await asyncio.wait({receiving})
        if poll.ended is not None or poll.receiving is not receiving:  # a later request of the worker has it
            return
        poll.receiving = None
        self._polls.pop(worker, None)
        try:
            await self.give_all_back(worker, receiving.result())
        except (BrokerUnreachable, DatabaseUnreachable) as error:
            log.warning("jobs of a worker that left wait for their leases", worker=worker.name, reason=str(error))

    async def given(self, worker: Worker, receipt: str) -> GivenJob:
        """Return the job of a receipt. Raises ReceiptUnknown for one of no job of this worker's."""
        given = (await self.sealer()).opened(worker.name, receipt)
        if given is None:
            raise ReceiptUnknown("receipt: of no job that was given to this worker")
        return given

    async def sealer(self) -> Receipts:
        """Return the signer with the key of all gateways, made by the first one. Raises DatabaseUnreachable."""
        if self._receipts is None:
            self._receipts = Receipts(bytes.fromhex(await self._records.run(_read_key)))
        return self._receipts


def within_bytes(deliveries: Sequence[Delivery]) -> tuple[Sequence[Delivery], Sequence[Delivery]]:
    """Return the first deliveries whose bodies fit into one reply, at least one, and the others. Pure."""
    left = MAX_REPLY_BYTES
    for number, one in enumerate(deliveries):
        left -= len(one.body)
        if left < 0 and number:
            return deliveries[:number], deliveries[number:]
    return deliveries, []


def _read_key(connection: sa.Connection) -> str:
    made = sa.text("INSERT INTO facts (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING")
    connection.execute(made, {"name": KEY_FACT, "value": secrets.token_hex(KEY_BYTES)})
    return str(connection.execute(sa.select(FACTS.c.value).where(FACTS.c.name == KEY_FACT)).scalar())


def _report_failure(task: asyncio.Task[None], error: BaseException) -> None:
    log.error("gateway task failed", task=task.get_name(), exc_info=error)
