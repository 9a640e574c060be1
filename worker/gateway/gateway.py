"""Gateway: takes requests, stores them, sends them to the broker and collects their results. Any number may run.

A job is in the database before it is acknowledged, and sent to the broker then. What one replica leaves undone (killed
between the two, or the broker away) any other does: each looks for jobs that were not sent and for results that nobody
has waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import structlog

from darkroom.worker.api.schemas import ParsedRequest
from darkroom.worker.concurrency.background_tasks import BackgroundTasks
from darkroom.worker.errors import (
    DatabaseUnreachable,
    QueueFull,
    RequestIdConflict,
    RequestIdTaken,
    RequestTooLarge,
    http_status,
)
from darkroom.worker.gateway.collector import Collector
from darkroom.worker.gateway.expected_wait import ExpectedWait
from darkroom.worker.gateway.fleet import Fleet
from darkroom.worker.gateway.followers import Followers
from darkroom.worker.gateway.job_ledger import UNREADABLE, UNREADABLE_ERROR, adder, adopt, leave_queue
from darkroom.worker.gateway.job_records import JobRecords, LargeJob, broker_id
from darkroom.worker.gateway.placing import Placement
from darkroom.worker.gateway.queue.queue import DatabaseQueue
from darkroom.worker.gateway.request_rates import RequestRates
from darkroom.worker.gateway.result_memory import LARGE_BYTES, ResultMemory, SpoolBudget
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.jobs.envelope import refusal
from darkroom.worker.json.values import WRONG_SHAPE, JsonObject
from darkroom.worker.observe.heap_trimming import HeapTrimming
from darkroom.worker.settings.gateway import GatewayConfig
from darkroom.worker.settings.jobs import CallerLimits, RetentionConfig
from darkroom.worker.sources.broker import BrokerUnreachable, JobTooLarge, Producer
from darkroom.worker.sources.oversized_jobs import message_in_place_of, too_large
from darkroom.worker.storage.job import Job, JobRequest, JobState, JobTimes, Stage

SEND_AGAIN_SECONDS = 2.0
COLLECT_SECONDS = 1.0
BATCH = 500
CANCEL_SECONDS = 5.0  # for which a cancel waits until a worker has ended the job: some sampling steps
EXPIRY_SECONDS = 60.0
COUNTED_SECONDS = 1.0
"""Seconds for which the number of jobs that have not ended is good while it is far from the limit."""

FEW_OF_LIMIT = 0.8  # of the limit, below which a number is far from it
SECRET_FREE_WORDS = "Request accepted"

log = structlog.get_logger("gateway")


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Progress of a job as a worker published it, or its end."""

    job: Job
    progress: Mapping[str, Any]


class Gateway:
    """Owner of a gateway's connections. `lifespan` opens and closes them; the jobs are `records`.

    The producer is a broker's, or the queue in the database of the jobs: then a job is in both or in none.
    """

    def __init__(
        self,
        records: JobRecords,
        producer: Producer,
        config: GatewayConfig,
        limits: CallerLimits,
        retention: RetentionConfig,
        rates: RequestRates | None = None,
        max_wait_seconds: float | None = None,
    ) -> None:
        self.records = records
        self.producer = producer
        self._queue = producer if isinstance(producer, DatabaseQueue) else None
        self.fleet = Fleet(producer)
        self._config = config
        self._limits = limits
        self._retention = retention
        self._rates = rates
        self._wait = ExpectedWait(self.fleet, producer, records, max_wait_seconds)
        self.memory, self.spool = ResultMemory(), SpoolBudget()
        self._live = (
            0,
            float("-inf"),
        )  # jobs that had not ended with those stored here since, and when they were counted
        self._collector = Collector(records, producer, self._end_at_broker)
        self._followers = Followers(producer, self._collector.note, records.ended_among)
        self._tasks = BackgroundTasks(_report_failure)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        await self.records.open()
        if self._queue is None:
            if num := await leave_queue(self.records, self.producer):
                log.info("jobs go to broker", num_jobs=num)
            self._tasks.spawn(self._send_left(), "gateway")
            self._tasks.spawn(self._collect(), "gateway")
        else:
            await self._begin_queue(self._queue)
        for loop in (
            self._expire(),
            self._followers.read_forever(),
            self._followers.look_forever(),
            HeapTrimming().run_forever(),
        ):
            self._tasks.spawn(loop, "gateway")
        try:
            yield
        finally:
            await self._tasks.close()
            await self.producer.close()
            await self.records.close()
            if self._rates is not None:
                await self._rates.close()

    async def _begin_queue(self, queue: DatabaseQueue) -> None:
        queue.start()
        if num := await adopt(queue):
            log.info("jobs queued again", num_jobs=num)
            await queue.wake("", num=num)

    async def problems(self) -> list[str]:
        """Return the reasons why no job would be accepted and sent now."""
        found = []
        try:
            await self.records.check()
        except DatabaseUnreachable as error:
            found.append(error.message)
        try:
            await self.producer.depth()
        except BrokerUnreachable as error:
            found.append(f"The broker cannot be reached: {error}")
        return found

    async def num_queued(self) -> int:
        """Return the number of jobs at the broker, 0 while it is away."""
        try:
            return await self.producer.depth()
        except BrokerUnreachable:
            return 0

    async def submit(
        self,
        parsed: ParsedRequest,
        digest: str,
        job_id: str,
        asked_id: str,
        caller: Identity,
        place: Placement,
        *,
        is_fresh: bool = False,
    ) -> Job:
        """Return the job of a checked request, new or the earlier one of this id; `place` is the stream it goes to.

        `is_fresh`: nobody can have used this id. Raises RequestIdTaken, RequestIdConflict, LimitReached, QueueFull,
        WaitTooLong, RequestTooLarge, DatabaseUnreachable.
        """
        earlier = None if is_fresh else await self.records.find(job_id)
        if earlier is None:
            await self._check_size()
            await self._wait.check(parsed.input, place.priority, caller.key_name)
            job = self._new_job(parsed, digest, job_id, asked_id, caller, place.priority)
            if await self._is_stored(job, self._limit_of(caller), place.model):
                self._live = self._live[0] + 1, self._live[1]
                return job
            earlier = await self.records.find(job_id)  # of the same request, at another replica
        if earlier is None:
            raise DatabaseUnreachable("The job was removed at this moment", retry_after_seconds=1)
        if not caller.owns(earlier.owner):
            raise RequestIdTaken("request_id: taken; expected another id", request_id=job_id)
        if earlier.body_hash != digest:
            named = earlier.public_id
            raise RequestIdConflict(f"request_id {named} belongs to a request with another body", request_id=named)
        return earlier

    async def _is_stored(self, job: Job, max_live: int | None, model: str) -> bool:
        """Store and send a new job. Returns False if its id is taken. Raises LimitReached, RequestTooLarge."""
        if self._queue is None:
            if is_new := await self.records.insert(job, max_live):
                await self._send_new(job, model)
            return is_new
        job.stage = Stage.WAITING
        wake = self._queue.wake_of(model)
        is_new = await self.records.insert(job, max_live, adder(self._queue, model, wake))
        if is_new:
            await self._queue.wake(model, is_told=wake is not None)
        return is_new

    def _new_job(
        self, parsed: ParsedRequest, digest: str, job_id: str, asked_id: str, caller: Identity, priority: int
    ) -> Job:
        given = {name: value for name, value in parsed.raw.items() if name != "request_id"}
        given["return_outputs_as_base64"] = parsed.wants_base64
        return Job(
            id=job_id,
            number=0,
            body_hash=digest,
            request=JobRequest(modifier=parsed.input.modifier, priority=priority, warnings=parsed.warnings),
            prompt={"input": given},
            times=JobTimes(queued_at_ms=int(time.time() * 1000)),
            owner=caller.key_name,
            metadata=parsed.input.metadata,
            asked_id=asked_id if asked_id != job_id else "",
            message=SECRET_FREE_WORDS,
        )

    def _limit_of(self, caller: Identity) -> int | None:
        """Return the number of jobs that a caller may have at a time; None for no limit."""
        return self._limits.jobs_waiting if caller.key_name and not caller.is_admin else None

    async def _check_size(self) -> None:
        """Raise QueueFull where too many jobs wait. Replicas that take jobs at once may exceed it by one each."""
        live, counted_at = self._live
        if live >= FEW_OF_LIMIT * self._config.max_live or time.monotonic() - counted_at > COUNTED_SECONDS:
            live = await self.records.num_live()
            self._live = live, time.monotonic()
        if live >= self._config.max_live:
            raise QueueFull(f"{live} jobs have not ended (GATEWAY_MAX_JOBS)", retry_after_seconds=5)

    async def _send_new(self, job: Job, model: str = "") -> None:
        try:
            await self._send(job, model)
        except JobTooLarge as error:
            await self.records.delete(job)
            raise too_large(error) from None
        except (BrokerUnreachable, DatabaseUnreachable) as error:
            log.warning("job waits for broker", request_id=job.id, reason=str(error))

    async def _send(self, job: Job, model: str) -> None:
        await self._put(job, job.prompt, model)

    async def _put(self, job: Job, message: JsonObject, model: str = "") -> None:
        body = json.dumps(message, separators=(",", ":")).encode()
        name = broker_id(job.number)
        asked = {"owner": job.owner or "", "asked_id": job.public_id}
        await self.producer.put(name, body, priority=job.request.priority, model=model, **asked)
        await self.records.sent(job)

    # what a caller waits for

    async def ended(self, job: Job) -> Job | None:
        """Return a job with its result, stored if that is new; None if it has not ended."""
        if job.state.is_terminal:
            return job
        return await self._end_at_broker(job) or await self._stored_end(job)

    async def _end_at_broker(self, job: Job) -> Job | None:
        name = broker_id(job.number)
        try:
            size_bytes = (await self.producer.result_sizes([name])).get(name)
            if size_bytes is None:
                return None
            async with self.memory.lease(size_bytes):
                found = await self.producer.result(name)
                if found is None:
                    return None
                try:
                    is_large = size_bytes > LARGE_BYTES
                    result = await asyncio.to_thread(json.loads, found) if is_large else json.loads(found)
                    del found
                    return await self.records.end(job, result, size_bytes)
                except WRONG_SHAPE as error:  # no worker's: the next ones go on
                    log.warning("result cannot be read", request_id=job.id, reason=str(error))
                    return await self.records.end(job, refusal(job.id, UNREADABLE, UNREADABLE_ERROR))
        except BrokerUnreachable:
            return None

    @asynccontextmanager
    async def loaded(self, job: Job) -> AsyncIterator[Job]:
        """Yield a job with its outputs. Large ones are read as soon as there is memory for them, and held no longer."""
        if isinstance(job, LargeJob):
            async with self.memory.lease(job.output_bytes):
                yield await self.records.whole(job) or replace(job)
        else:
            yield job

    async def _stored_end(self, job: Job) -> Job | None:
        """Return the job as another replica has stored its end; None if none has."""
        stored = await self.records.find(job.id)
        return stored if stored is not None and stored.state.is_terminal else None

    async def follow(self, job: Job) -> AsyncIterator[JobEvent]:
        """Yield the progress of a job until its end, which comes last."""
        shown = (-1, 0.0)
        with self._followers.following(broker_id(job.number)) as follower:
            # A job that was stored just now still has its body: its end, too, comes as an event or by the look at all.
            is_new = self._queue is not None and bool(job.prompt)
            end = None if is_new else await self.ended(job)
            for event in await self.events(job) if end is None else ():
                follower.add(event)
            while end is None:
                while follower.events:
                    event = follower.events.popleft()
                    if (progress := _progress_of(event)) > shown:  # else it has come before, as one that was kept
                        shown = progress
                        yield JobEvent(job, event)
                if follower.is_over:  # or its worker has handed it back
                    follower.is_over = False
                    end = await self.ended(job)
                else:
                    await follower.changed()
        yield JobEvent(end, {})

    async def events(self, job: Job) -> list[Mapping[str, Any]]:
        """Return the events that the broker has of a job, the newest last; none while it is away."""
        try:
            return [json.loads(event) for event in await self.producer.events(broker_id(job.number))]
        except BrokerUnreachable:
            return []

    async def cancel(self, job: Job) -> Job:
        """Cancel a job: a worker that has it ends it, one that gets it later does not begin. Returns the job.

        Raises BrokerUnreachable.
        """
        ended = await self.ended(job)
        if ended is not None:
            return ended
        await self.producer.cancel(broker_id(job.number))
        if not await self.producer.events(broker_id(job.number)):  # no worker has it
            error = {"status": 499, "code": "job_cancelled", "message": "The job was cancelled"}
            body = refusal(job.id, "Request cancelled", error) | {"status": JobState.CANCELLED.value}
            await self.producer.settle(broker_id(job.number), json.dumps(body).encode())
            news = {"id": job.public_id, "status": JobState.CANCELLED.value, "message": "Request cancelled"}
            await self.producer.publish(broker_id(job.number), json.dumps(news).encode())
        async with _within(CANCEL_SECONDS):
            async for event in self.follow(job):
                job = event.job
        return job

    # what nobody waits for

    async def _send_left(self) -> None:
        """Send jobs that a replica has stored and not sent."""
        await self._forever(SEND_AGAIN_SECONDS, self._send_batch)

    async def _send_batch(self) -> None:
        before_ms = int((time.time() - SEND_AGAIN_SECONDS) * 1000)
        for head in await self.records.unsent(before_ms, BATCH):
            job = await self.records.whole(head)
            if job is None:
                continue
            log.info("job sent again", request_id=job.id)
            try:
                await self._send(job, "")
            except JobTooLarge as error:  # it has been acknowledged while the broker was away
                await self._end_too_large(job, error)

    async def _end_too_large(self, job: Job, error: JobTooLarge) -> None:
        """End an acknowledged job that is too large for the broker: a worker does, so that its webhook is sent."""
        try:
            await self._put(job, message_in_place_of(job.prompt, error))
        except JobTooLarge:  # its webhook alone is
            refused = too_large(error)
            told = {"status": http_status(RequestTooLarge), **refused.as_json()}
            await self.records.end(job, refusal(job.id, refused.message, told))

    async def _collect(self) -> None:
        """Store the results of jobs that nobody has waited for."""
        await self._forever(COLLECT_SECONDS, self._collector.collect)

    async def _expire(self) -> None:
        """Remove results that are over their time, and callers that have not come for a while."""

        async def forget() -> None:
            if self._rates is not None:
                await self._rates.forget_old()
            await self.records.forget_finished_before(int((time.time() - self._retention.result_ttl_seconds) * 1000))
            if self._queue is not None:
                await self._queue.forget_old()

        await self._forever(EXPIRY_SECONDS, forget)

    async def _forever(self, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await act()
            except (BrokerUnreachable, DatabaseUnreachable) as error:
                log.warning("gateway loop waits", reason=str(error))
            except Exception:  # noqa: BLE001 - the loop: one bad row must not end it
                log.exception("gateway loop failed")
            await asyncio.sleep(seconds)


def _report_failure(task: asyncio.Task[None], error: BaseException) -> None:
    log.error("gateway task failed", task=task.get_name(), exc_info=error)


def _progress_of(event: Mapping[str, Any]) -> tuple[int, float]:
    return int(event.get("seq", 0)), float(event.get("percent", 0.0))


@contextlib.asynccontextmanager
async def _within(seconds: float) -> AsyncIterator[None]:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            yield
