"""DatabaseBroker: one worker's side of the queue in the database, for a gateway that acts in the worker's name."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
import structlog

from darkroom.worker.gateway.queue.queue import DatabaseQueue
from darkroom.worker.gateway.queue.statements import Taken
from darkroom.worker.gateway.result_memory import LARGE_BYTES
from darkroom.worker.jobs.envelope import refusal
from darkroom.worker.json.values import WRONG_SHAPE
from darkroom.worker.sources.broker import BrokerUnreachable, Delivery

KIND: Final = "database"
WAIT_SECONDS: Final = 20.0
"""Seconds between two looks of an idle worker that nobody wakes."""

AGAIN_SECONDS: Final = 1.0
"""Seconds until a worker looks again that found nothing but jobs that others were about to take."""

MAX_TAKEN_BYTES: Final = 32 * 1024 * 1024
"""Bytes of the bodies that are taken at a time; the first may be larger."""

NO_BODY: Final = "The queue has no body of the job"
NO_BODY_ERROR: Final = {"status": 500, "code": "job_lost", "message": NO_BODY}

log = structlog.get_logger("gateway")


@dataclass(frozen=True, slots=True)
class Receipt:
    """A delivery: the job, its claim, which no other delivery has, and the worker that has it.

    As text it begins with KIND: a worker may hold receipts of the broker that its gateway had before, which are signed.
    """

    job_id: str
    claim: int
    holder: str

    @property
    def text(self) -> str:
        return json.dumps([KIND, self.job_id, self.claim, self.holder])

    @staticmethod
    def of(text: str) -> Receipt | None:
        """Return a receipt of this queue, None for that of a broker."""
        try:
            kind, *fields = json.loads(text)
            return Receipt(*fields) if kind == KIND else None
        except WRONG_SHAPE:
            return None


class DatabaseBroker:
    """A `Broker` on the queue of a gateway, which others share. `holder` is the worker, once it is connected."""

    def __init__(self, queue: DatabaseQueue, lease_seconds: float, wait_seconds: float = WAIT_SECONDS) -> None:
        self.name = queue.name
        self.lease_seconds = lease_seconds
        self._queue = queue
        self._wait_seconds = wait_seconds
        self.holder = ""

    async def connect(self, consumer: str) -> None:
        self.holder = consumer
        self._queue.start(self.lease_seconds)

    async def receive(self, most: int, models: Sequence[str], seconds: float | None = None) -> list[Delivery]:
        until = time.monotonic() + (self._wait_seconds if seconds is None else min(seconds, self._wait_seconds))
        with self._queue.waiters.waiting(models) as waiter:
            found, is_more = await self.take(most, models)
            while not found and (left := until - time.monotonic()) > 0:
                if await waiter.is_woken(min(left, AGAIN_SECONDS) if is_more else left) or is_more:
                    found, is_more = await self.take(most, models)
        if found and is_more:
            await self._queue.wake("")
        return found

    async def renew(self, receipts: Collection[str]) -> set[str]:
        given = {text: receipt for text in receipts if (receipt := Receipt.of(text)) is not None}
        if not given:
            return set()
        ours: set[str] = set()

        def renew(connection: sa.Connection) -> None:
            ours.clear()
            for holder in {receipt.holder for receipt in given.values()}:
                theirs = {text: one for text, one in given.items() if one.holder == holder}
                values = {
                    "lease_ms": self._lease_ms, "holder": holder, "job_ids": [one.job_id for one in theirs.values()],
                    "held": [f"{one.job_id}/{one.claim}" for one in theirs.values()],
                }  # fmt: skip
                kept = set(connection.execute(self._queue.shared.renew, values).scalars())
                ours.update(text for text, one in theirs.items() if one.job_id in kept)
            others = {given[text].job_id for text in given.keys() - ours}
            lost = self._queue.lost_among(connection, others)
            ours.update(text for text, one in given.items() if one.job_id in lost)

        await self._queue.run(renew)
        return ours

    async def finish(self, job_id: str, receipt: str, result: bytes) -> None:
        del receipt  # the first result counts, whoever has the job by now
        await self._queue.finish(job_id, result)

    async def bury(self, delivery: Delivery, reason: str, result: bytes) -> None:
        await self._queue.bury(delivery.job_id, delivery.body, reason, result)

    async def give_back(self, receipt: str) -> bool:
        held = Receipt.of(receipt)
        if held is None:  # of a broker: the job is not this worker's here
            return True
        values = {"job_id": held.job_id, "claim": held.claim, "holder": held.holder}

        def give(connection: sa.Connection) -> tuple[list[str], bool]:
            waiting = list(connection.execute(self._queue.shared.give_back, values).scalars())
            return waiting, bool(waiting) or not self._queue.lost_among(connection, [held.job_id])

        waiting, is_known = await self._queue.run(give)
        for model in waiting:
            await self._queue.wake(model)
        return is_known

    async def cancelled(self, job_ids: Collection[str]) -> set[str]:
        return await self._queue.cancelled(job_ids)

    async def publish(self, job_id: str, event: bytes) -> None:
        await self._queue.publish(job_id, event)

    async def announce(self, entry: bytes, lists: Mapping[str, bytes]) -> None:
        shared = self._queue.shared

        def announce(connection: sa.Connection) -> None:
            for nodes_id, packed in lists.items():
                connection.execute(shared.add_nodes, {"id": nodes_id, "packed": packed})
            connection.execute(shared.announce, {"name": self.holder, "entry": entry})

        await self._queue.run(announce)

    async def close(self) -> None:
        """Nothing: the queue is the gateway's."""

    @property
    def _lease_ms(self) -> int:
        return round(self.lease_seconds * 1000)

    async def take(self, most: int, models: Sequence[str]) -> tuple[list[Delivery], bool]:
        """Return jobs that were leased, and whether others wait."""

        def take(connection: sa.Connection) -> Taken:
            statements = self._queue.statements
            return statements.take(connection, self.holder, most, self._lease_ms, models, MAX_TAKEN_BYTES)

        taken = await self._queue.single(take, lambda taken: taken.num_bytes > LARGE_BYTES)
        rows = [row for row in taken.rows if row.content is not None]
        for row in taken.rows:
            if row.content is None:
                await self._bury_without_body(row)
        for row in rows:
            self._queue.note_taken(row.job_id, is_cancelled=bool(row.is_cancelled))
        return [self._delivery(row) for row in rows], taken.is_more

    def _delivery(self, row: sa.Row[Any]) -> Delivery:
        content = row.content
        receipt = Receipt(row.job_id, row.claim, self.holder)
        queued_ms = round(time.time() * 1000) - row.waited_ms
        return Delivery(
            row.job_id, content.encode() if isinstance(content, str) else bytes(content), receipt.text,
            row.num_deliveries, row.owner, queued_ms, row.asked_id,
        )  # fmt: skip

    async def _bury_without_body(self, row: sa.Row[Any]) -> None:
        """End a job whose row is gone from the table of jobs: a worker that had it could do nothing."""
        log.error("queued job has no body", job=row.job_id)
        result = json.dumps(refusal(row.asked_id or row.job_id, NO_BODY, NO_BODY_ERROR)).encode()
        try:
            await self._queue.bury(row.job_id, b"", NO_BODY, result)
        except BrokerUnreachable as error:  # again once its lease has run out; others were taken with it
            log.warning("queued job has not ended", job=row.job_id, reason=str(error))
