"""DatabaseQueue: the queue of gateways in their own database, the producer's side and what all consumers share.

A job of the ledger (`job_records.py`) is queued in the transaction that stores it, and its result is stored in the one
that takes it from the queue: neither can be lost between two stores. All transactions lock a job's row of the queue
before that of the ledger, the counters of the ledger before those of the queue, and of these the turns first. Other
jobs have their results in a table beside. Who waits is woken: at the same gateway by a call, at another by a notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, Protocol, TypeVar

import sqlalchemy as sa
import structlog

from darkroom.worker.concurrency.background_tasks import BackgroundTasks
from darkroom.worker.errors import DatabaseUnreachable
from darkroom.worker.gateway.database import GatewayDatabase
from darkroom.worker.gateway.queue.notices import Notices
from darkroom.worker.gateway.queue.progress_notes import ProgressNotes
from darkroom.worker.gateway.queue.statements import (
    NewJob,
    PostgresStatements,
    QueueStatements,
    SharedStatements,
    SqliteStatements,
)
from darkroom.worker.gateway.queue.waiters import Waiters
from darkroom.worker.gateway.result_memory import LARGE_BYTES
from darkroom.worker.sources.broker import FLEET_SECONDS, BrokerUnreachable, News, StreamDepth
from darkroom.worker.sources.fleet_entries import marked_last
from darkroom.worker.sources.stream_order import PRIORITIES, priority_name

WAKE, CANCEL, EVENT = "wake", "cancel", "event"
LONGEST_LOOK_SECONDS: Final = 3.0
LEAST_LOOK_SECONDS: Final = 0.2
MOST_OWNERS: Final = 1000  # that are counted where many keys wait
MOST_OWN: Final = 10_000  # jobs that are counted of one key
LOOK_AGAIN_SECONDS: Final = 30.0
"""Seconds after which a cancellation is looked for that may not have been heard of."""

CANCELLED: Final = float("inf")
MAX_NOTED: Final = 50_000  # jobs whose cancellation would be heard of

Answer = TypeVar("Answer")

log = structlog.get_logger("gateway")


class Ledger(Protocol):
    """Table of jobs, as far as a queue uses it."""

    def has(self, job_id: str) -> bool:
        """Return True for the name of a job of this ledger."""
        ...

    def end(self, connection: sa.Connection, job_id: str, result: bytes) -> list[bytes]:
        """Store the result of a job, unless it has one. Returns the event of its end then."""
        ...

    def body_with_webhook(self, connection: sa.Connection, job_id: str) -> bytes | None:
        """Return the body of a job that has a webhook; None for other jobs, and those that have ended."""
        ...

    def live_among(self, connection: sa.Connection, job_ids: Collection[str]) -> set[str]:
        """Return those of some jobs that have not ended."""
        ...


class NoLedger:
    """A ledger without jobs: all results are in the table beside the queue."""

    def has(self, job_id: str) -> bool:
        del job_id
        return False

    def end(self, connection: sa.Connection, job_id: str, result: bytes) -> list[bytes]:
        del connection, job_id, result
        return []

    def body_with_webhook(self, connection: sa.Connection, job_id: str) -> bytes | None:
        del connection, job_id
        return None

    def live_among(self, connection: sa.Connection, job_ids: Collection[str]) -> set[str]:
        del connection, job_ids
        return set()


class DatabaseQueue:
    """A `Producer`, and what its consumers (`consumer.py`) share. `ledger` has the jobs that are more than messages."""

    def __init__(self, database: GatewayDatabase, result_seconds: float, ledger: Ledger | None = None) -> None:
        self.database = database
        self.ledger: Ledger = ledger or NoLedger()
        self.waiters = Waiters()
        self.notes = ProgressNotes()
        self.statements: QueueStatements = PostgresStatements() if database.is_postgres else SqliteStatements()
        self.shared = SharedStatements(self.statements.now)
        self.result_seconds = result_seconds
        self.notices = Notices(database, self._heard, self._missed)
        self._looked_at: OrderedDict[str, float] = OrderedDict()  # jobs that were asked about; CANCELLED, or when
        self._tasks = BackgroundTasks(_report_failure)
        self._look_seconds = LONGEST_LOOK_SECONDS

    @property
    def name(self) -> str:
        return self.database.name

    def start(self, lease_seconds: float = float("inf")) -> None:
        """Listen, and look for leases that have run out, more often for shorter ones."""
        self._look_seconds = min(self._look_seconds, max(LEAST_LOOK_SECONDS, lease_seconds / 4))
        if not len(self._tasks):
            for loop in (self.notices.hear_forever(), self.notices.send_forever(), self._free_forever()):
                self._tasks.spawn(loop, "gateway-queue")

    async def close(self) -> None:
        await self._tasks.close()

    # the producer's side

    async def put(
        self, job_id: str, body: bytes, *, priority: int = 0, model: str = "", owner: str = "", asked_id: str = ""
    ) -> bool:
        new = NewJob(job_id, rank_of(priority), owner, model, asked_id, len(body), body)

        def add(connection: sa.Connection) -> bool:
            has_ended = connection.execute(self.shared.result, {"job_id": job_id}).first() is not None
            return not has_ended and self.add(connection, new, wake)

        wake = self.wake_of(model)
        is_new = await self.run(add)
        if is_new:
            await self.wake(model, is_told=wake is not None)
        return is_new

    def wake_of(self, model: str) -> str | None:
        """Return the notice that a new job's statement sends; None where a worker waits at this gateway."""
        return None if self.waiters.has_any else self.notices.payload(WAKE, model)

    def add(self, connection: sa.Connection, job: NewJob, wake: str | None) -> bool:
        """Queue a job in a transaction. `wake` is that of `wake_of`; `wake` is called once the job is there."""
        return self.statements.put(connection, job, self.notices.channel, wake)

    async def wake(self, model: str, *, is_told: bool = False, num: int = 1) -> None:
        """Wake one worker that waits for each of some jobs, at another gateway where none does at this one.

        `is_told`: others know already.
        """
        num_left = num - self.waiters.wake_some(model, num)
        if num_left and not is_told:
            self.notices.count_soon(WAKE, model, num_left)

    async def cancel(self, job_id: str) -> None:
        notice = self.notices.payload(CANCEL, job_id)
        cancel = self.statements.cancel
        await self.single(lambda connection: cancel(connection, job_id, self.notices.channel, notice))
        self._note_cancelled(job_id, is_cancelled=True)

    async def result(self, job_id: str) -> bytes | None:
        found = await self.single(lambda connection: connection.execute(self.shared.result, {"job_id": job_id}).first())
        return None if found is None else bytes(found.result)

    async def result_sizes(self, job_ids: Sequence[str]) -> dict[str, int]:
        asked = [job_id for job_id in job_ids if not self.ledger.has(job_id)]
        if not asked:
            return {}
        rows = await self.single(lambda connection: connection.execute(self.shared.sizes, {"job_ids": asked}).all())
        return {row.job_id: row.num_bytes for row in rows}

    async def settle(self, job_id: str, result: bytes) -> None:
        """Store a result for a job that no worker has. A worker gets it all the same if it has a webhook."""

        def store(connection: sa.Connection) -> None:
            row = connection.execute(self.shared.lock, {"job_id": job_id}).one_or_none()
            if row is not None and row.holder is not None:
                return
            is_of_ledger = self.ledger.has(job_id)
            body = self.ledger.body_with_webhook(connection, job_id) if is_of_ledger else None
            if is_of_ledger and self._store_result(connection, job_id, result) and body is None:
                self.statements.return_turn(connection, job_id)
                connection.execute(self.shared.remove, {"job_id": job_id})
            else:
                connection.execute(self.shared.settle, {"job_id": job_id, "body": body})
            if not is_of_ledger:
                self._store_result(connection, job_id, result)

        await self.run(store)

    async def fleet(self) -> list[bytes]:
        values = {"fresh_ms": FLEET_SECONDS * 1000}
        rows = await self.single(lambda connection: connection.execute(self.shared.fleet, values).all())
        there = [bytes(row.entry) for row in rows if row.is_there]
        return there or [marked_last(bytes(row.entry)) for row in rows[:1]]

    async def nodes(self, nodes_id: str) -> bytes | None:
        found = await self.single(lambda connection: connection.execute(self.shared.nodes, {"id": nodes_id}).first())
        return None if found is None else bytes(found.packed)

    async def publish(self, job_id: str, event: bytes) -> None:
        self.notes.add(job_id, event)
        self.notices.send_soon(EVENT, job_id, event.decode())

    async def events(self, job_id: str) -> list[bytes]:
        return self.notes.newest(job_id)

    async def news(self, after: str, wait_seconds: float) -> list[News]:
        return await self.notes.news(after, wait_seconds)

    async def depths(self) -> list[StreamDepth]:
        rows = await self.single(lambda connection: connection.execute(self.shared.depths).all())
        found = {(name, ""): 0 for name in PRIORITIES} | {
            (PRIORITIES[row.rank], row.model): int(row.num) for row in rows if row.num or not row.model
        }
        return [StreamDepth(priority, model, num) for (priority, model), num in found.items()]

    async def depth(self) -> int:
        return int(await self.single(lambda connection: connection.execute(self.shared.depth).scalar()) or 0)

    async def num_before(self, priority: int, owner: str, num_held: int) -> int:
        """Return the number of jobs that go before a new one of this key, with its turns among the other keys.

        `num_held` of those that workers hold count at most, and none that is cancelled and waits.
        """
        values = {"rank": rank_of(priority), "owner": owner, "most_owners": MOST_OWNERS, "most_own": MOST_OWN}
        row = await self.single(lambda connection: connection.execute(self.shared.before, values).one())
        num_higher, num_same = int(row.all_higher - row.higher_gone), int(row.all_same - row.same_gone)
        num_own = int(row.num_own)
        return num_higher + min(num_same, num_held + num_own + int(row.num_others) * (num_own + 1))

    # what consumers share

    async def cancelled(self, job_ids: Collection[str]) -> set[str]:
        """Return those of the jobs that are cancelled. Only what was not looked up lately is looked up."""
        before = time.monotonic() - LOOK_AGAIN_SECONDS
        unknown = [job_id for job_id in job_ids if self._looked_at.get(job_id, before) <= before]
        if unknown:
            rows = await self.single(
                lambda connection: connection.execute(self.shared.find, {"job_ids": unknown}).all()
            )  # fmt: skip
            for row in rows:
                self._note_cancelled(row.job_id, is_cancelled=row.is_cancelled)
        return {job_id for job_id in job_ids if self._looked_at.get(job_id) == CANCELLED}

    def note_taken(self, job_id: str, *, is_cancelled: bool) -> None:
        """Note whether a job that was taken is cancelled."""
        self._note_cancelled(job_id, is_cancelled=is_cancelled)

    async def finish(self, job_id: str, result: bytes) -> None:
        """Store the result of a job, unless it has one, and take it from the queue."""
        ended: list[bytes] = []

        def store(connection: sa.Connection) -> None:
            ended.clear()
            connection.execute(self.shared.lock, {"job_id": job_id})
            ended.extend(self._store_result(connection, job_id, result))
            connection.execute(self.shared.remove, {"job_id": job_id})

        await self.run(store, is_large=len(result) > LARGE_BYTES)
        self._looked_at.pop(job_id, None)
        for event in ended:
            await self.publish(job_id, event)

    async def bury(self, job_id: str, body: bytes, reason: str, result: bytes) -> None:
        """Finish a job and keep its message among the dead letters."""
        values = {"job_id": job_id, "reason": reason, "body": body}
        await self.single(lambda connection: connection.execute(self.shared.add_dead, values))
        await self.finish(job_id, result)

    def lost_among(self, connection: sa.Connection, job_ids: Collection[str]) -> set[str]:
        """Return those of some jobs that have not ended and are not in the queue: the database has lost them."""
        if not job_ids:
            return set()
        named = {"job_ids": list(job_ids)}
        known = {row.job_id for row in connection.execute(self.shared.find, named)}
        of_ledger = {job_id for job_id in job_ids if self.ledger.has(job_id)} - known
        live = self.ledger.live_among(connection, of_ledger) if of_ledger else set()
        others = set(job_ids) - known - of_ledger
        if others:
            others -= {row.job_id for row in connection.execute(self.shared.sizes, {"job_ids": list(others)})}
        return live | others

    async def forget_old(self) -> None:
        """Remove results, dead letters, cancelled jobs, workers and node lists of before. Raises BrokerUnreachable."""

        def forget(connection: sa.Connection) -> None:
            for statement in (self.shared.forget_settled, *self.shared.forget):
                connection.execute(statement, {"kept_ms": int(self.result_seconds * 1000)})
            connection.execute(self.shared.forget_turns)

        await self.run(forget)

    async def run(self, function: Callable[[sa.Connection], Answer], *, is_large: bool = False) -> Answer:
        """Call a function in a transaction. Raises BrokerUnreachable."""
        with _translated():
            return await self.database.run(function, is_large=lambda _answer: is_large)

    async def single(
        self, function: Callable[[sa.Connection], Answer], is_large: Callable[[Answer], bool] = lambda _answer: False
    ) -> Answer:
        """Call a function that makes one statement. Raises BrokerUnreachable."""
        with _translated():
            return await self.database.run(function, is_single=True, is_large=is_large)

    def _store_result(self, connection: sa.Connection, job_id: str, result: bytes) -> list[bytes]:
        if self.ledger.has(job_id):
            return self.ledger.end(connection, job_id, result)
        connection.execute(self.shared.add_result, {"job_id": job_id, "result": result})
        return []

    async def _free_forever(self) -> None:
        """Let jobs wait again whose leases have run out."""
        while True:
            await asyncio.sleep(self._look_seconds)
            try:
                freed = await self.single(self.statements.free)
            except BrokerUnreachable as error:
                log.warning("leases are not looked at", reason=str(error))
                continue
            except Exception:  # noqa: BLE001 - the loop: jobs would stay with workers that are lost
                log.exception("leases are not looked at")
                continue
            for model in freed:
                await self.wake(model)

    def _heard(self, kind: str, words: list[str]) -> None:
        if kind == WAKE:
            model, *counted = words
            self.waiters.wake_some(model, int(counted[0]) if counted else 1)
        elif kind == CANCEL:
            self._note_cancelled(*words, is_cancelled=True)
        elif kind == EVENT:
            job_id, event = words
            self.notes.add(job_id, event.encode())

    def _missed(self) -> None:
        self._looked_at.clear()
        self.waiters.wake_all()

    def _note_cancelled(self, job_id: str, *, is_cancelled: bool) -> None:
        """Note what was found or heard: a cancellation may be heard of while an earlier state is read, and stays."""
        if self._looked_at.get(job_id) != CANCELLED:
            self._looked_at[job_id] = CANCELLED if is_cancelled else time.monotonic()
        self._looked_at.move_to_end(job_id)
        if len(self._looked_at) > MAX_NOTED:
            self._looked_at.popitem(last=False)


def rank_of(priority: int) -> int:
    """Return the rank of a request's priority, 0 for the highest."""
    return PRIORITIES.index(priority_name(priority))


def priority_of(rank: int) -> int:
    """Return a priority of this rank."""
    return PRIORITIES.index(priority_name(0)) - rank


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except DatabaseUnreachable as error:
        raise BrokerUnreachable(error.message) from None


def _report_failure(task: asyncio.Task[None], error: BaseException) -> None:
    log.error("gateway queue failed", task=task.get_name(), exc_info=error)
