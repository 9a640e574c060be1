"""Intake: takes jobs from a broker, gives them to the pipeline, and reports their ends to the broker.

A job from a broker is a job like any other: on disk before anything is done with it. Its delivery is held, with its
lease renewed, until its end and its webhook are on disk and the broker has the result. Where the lease is lost, another
worker has the job, and this one drops it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from darkroom.contract.wire import PARTNER_KEYS
from darkroom.worker.concurrency.background_tasks import BackgroundTasks
from darkroom.worker.errors import CallerError, EngineUnreachable, TooManyDeliveries, WorkerError
from darkroom.worker.jobs.envelope import refusal
from darkroom.worker.jobs.pipeline.pipeline import Pipeline
from darkroom.worker.settings.broker import BrokerConfig
from darkroom.worker.sources.announcer import Announcer
from darkroom.worker.sources.broker import FLEET_SECONDS, Broker, BrokerRefused, BrokerUnreachable, Delivery
from darkroom.worker.sources.connection import BrokerConnection
from darkroom.worker.storage.job import Job, JobFailure
from darkroom.worker.storage.source_jobs import ended_jobs_of_broker
from darkroom.worker.storage.store import JobStore

CONSUMER_FACT = "broker_consumer"
REFUSED_PAUSE_SECONDS = 1.0  # after a job that the worker has no room for
ROOM_PAUSE_SECONDS = 0.1
CANCEL_CHECK_SECONDS = 1.0
EVENT_SECONDS = 0.5
NUM_MODELS = 4
ENGINE_PAUSE_SECONDS = 1.0
PARTNER_KEY = re.compile(rb'("(?:%s)"\s*:\s*)"(?:[^"\\]|\\.)*"' % "|".join(PARTNER_KEYS).encode())

log = structlog.get_logger("sources")

Accept = Callable[[Delivery], Awaitable[Job]]
"""Makes a delivery a stored job, or finds the job of an earlier delivery. Raises WorkerError."""

Refuse = Callable[[Delivery, WorkerError], Awaitable[Job | None]]
"""Makes a delivery a stored job that has ended with the error, its webhook with it; None where another job has its id.

Raises StateUnusable.
"""

ResultOf = Callable[[Job], Awaitable[dict[str, object]]]


@dataclass(slots=True)
class _Held:
    """A job with a lease. `job` is None until it is accepted."""

    job_id: str
    receipt: str
    job: Job | None = None


class Intake:
    """Owner of the deliveries that this worker holds. `run_forever` is its task, `close` gives the rest back.

    `num_places` is the number of jobs that the engines take at once.
    """

    def __init__(
        self,
        broker: Broker,
        config: BrokerConfig,
        num_places: Callable[[], int],
        store: JobStore,
        pipeline: Pipeline,
        *,
        accept: Accept,
        refuse: Refuse,
        result_of: ResultOf,
        has_room: Callable[[], bool],
        models_of: Callable[[Job], Sequence[str]],
        announcer: Announcer,
    ) -> None:
        self._broker = broker
        self._config = config
        self._num_places = num_places
        self._store = store
        self._pipeline = pipeline
        self._accept = accept
        self._refuse = refuse
        self._result_of = result_of
        self._has_room = has_room
        self._models_of = models_of
        self._announcer = announcer
        self._consumer = ""
        self._held: dict[str, _Held] = {}  # by receipt
        self._tasks = BackgroundTasks(_report_failure)
        self._models: OrderedDict[str, None] = OrderedDict()  # the last used at the end
        self._connection = BrokerConnection(broker)
        self._is_stopping = False

    def report(self) -> dict[str, object]:
        """Return the state of the connection, for `/health`."""
        return {**self._connection.report(), "held": len(self._held)}

    @property
    def problem(self) -> str:
        """The reason why no jobs come from the broker; empty if there is none."""
        return self._connection.problem

    async def run_forever(self) -> None:
        """Take jobs until cancelled, or until the broker takes this worker's credentials no longer."""
        try:
            await self._take_jobs()
        except BrokerRefused as error:
            self._connection.lost(error)
        if self._connection.is_refused:
            await self._leave()

    async def _take_jobs(self) -> None:
        await self._connected()
        await self._adopt()
        self._tasks.spawn(self._keep_leases(), "intake")
        self._tasks.spawn(self._watch_cancellations(), "intake")
        self._tasks.spawn(self._announce(), "intake")
        while not self._is_stopping and not self._connection.is_refused:
            room = (self._config.num_held or self._num_places()) - len(self._held)
            if room <= 0 or not self._has_room():
                await asyncio.sleep(ROOM_PAUSE_SECONDS)
                continue
            try:
                deliveries = await self._broker.receive(room, list(reversed(self._models)))
            except BrokerUnreachable as error:
                await self._connection.pause(error)
                continue
            self._connection.reached()
            await self._take(deliveries)

    async def _leave(self) -> None:
        """End what this worker has of the broker's jobs: others get them once their leases run out."""
        self._is_stopping = True
        for held in list(self._held.values()):
            if held.job is not None:
                self._drop(held.job)
        await self._tasks.close()

    async def stop(self) -> None:
        """Take no more jobs, and give those back that no engine has begun with."""
        self._is_stopping = True
        for held in list(self._held.values()):
            if held.job is None or not self._pipeline.has_begun(held.job.id):
                await self._hand_back(held)

    async def close(self) -> None:
        """Give back every job that has not ended, and disconnect."""
        self._is_stopping = True
        for held in list(self._held.values()):
            if held.job is None or not held.job.state.is_terminal:
                await self._hand_back(held)
        finishing = [task for task in self._tasks if task.get_name().startswith("delivery-")]
        if finishing:
            await asyncio.wait(finishing, timeout=self._broker.lease_seconds / 3)
        await self._tasks.close()
        await self._broker.close()

    # jobs of an earlier run

    async def _connected(self) -> None:
        consumer = await self._store.facts.get(CONSUMER_FACT)
        if not isinstance(consumer, str):
            consumer = uuid.uuid4().hex
            await self._store.facts.set(CONSUMER_FACT, consumer)
        self._consumer = consumer
        await self._connection.until_reached(lambda: self._broker.connect(consumer))

    async def _adopt(self) -> None:
        """Hold the jobs of an earlier run again: those that go on here, and those whose end the broker may not have."""
        live = [job for job in self._store.jobs.values() if job.request.receipt]
        ended = await ended_jobs_of_broker(self._store, time.time() - self._config.result_seconds)
        ours = await self._renewed([job.request.receipt for job in (*live, *ended)])
        for job in (*live, *ended):
            if job.request.receipt in ours:
                self._hold(_Held(job.id, job.request.receipt, job), None)
            elif not job.state.is_terminal:
                self._drop(job)

    # one delivery

    async def _take(self, deliveries: Sequence[Delivery]) -> None:
        """Hold jobs that came, unless this worker is stopping by now."""
        for delivery in deliveries:
            held = _Held(delivery.job_id, delivery.receipt)
            if self._is_stopping:
                await self._hand_back(held)
            else:
                self._hold(held, delivery)

    def _hold(self, held: _Held, delivery: Delivery | None) -> None:
        self._held[held.receipt] = held
        self._tasks.spawn(self._serve(held, delivery), f"delivery-{held.job_id}")

    async def _serve(self, held: _Held, delivery: Delivery | None) -> None:
        try:
            if delivery is not None:
                held.job = await self._accepted(delivery)
            if held.job is not None and await self._followed(held.job_id, held.job):
                result = await self._result_json(held.job)
                await self._connection.until_reached(lambda: self._broker.finish(held.job_id, held.receipt, result))
                await self._publish(held.job_id, held.job)  # for those that follow it: the result is there
        except BrokerRefused as error:
            self._connection.lost(error)
        finally:
            self._held.pop(held.receipt, None)

    async def _accepted(self, delivery: Delivery) -> Job | None:
        """Return the stored job of a delivery; None if the delivery has been settled here without one."""
        is_cancelled = await self._is_cancelled(delivery.job_id)
        try:
            if delivery.num_deliveries > self._config.max_deliveries:
                reason = f"delivered {delivery.num_deliveries} times; every worker that had it was lost"
                await self._bury(delivery, TooManyDeliveries(reason))
                return None
            job = await self._accepted_or_buried(delivery)
            if job is None:
                return None
        except WorkerError as error:  # no room, or the engine is away: another worker may have both
            log.info("job given back to broker", request_id=delivery.job_id, code=error.code)
            await asyncio.sleep(REFUSED_PAUSE_SECONDS)
            await self._connection.until_reached(lambda: self._give_back(delivery))
            return None
        if is_cancelled:
            self._pipeline.cancel(job)
        for model in self._models_of(job):
            self._models[model] = None
            self._models.move_to_end(model)
        while len(self._models) > NUM_MODELS:
            self._models.popitem(last=False)
        return job

    async def _is_cancelled(self, job_id: str) -> bool:
        with contextlib.suppress(BrokerUnreachable):  # it is looked up again while the job is held
            return bool(await self._broker.cancelled([job_id]))
        return False

    async def _give_back(self, delivery: Delivery) -> None:
        await self._broker.give_back(delivery.receipt)

    async def _accepted_or_buried(self, delivery: Delivery) -> Job | None:
        """Return the stored job of a delivery, None for one that no worker can run. Raises WorkerError."""
        try:
            return await self._accept(delivery)
        except CallerError as error:
            await self._bury(delivery, error)
            return None

    async def _bury(self, delivery: Delivery, error: WorkerError) -> None:
        """End a job that does not begin: first here, with its webhook, then at the broker. Raises StateUnusable."""
        log.error("job from broker is a dead letter", request_id=delivery.job_id, code=error.code)
        job = await self._refuse(delivery, error)
        told = JobFailure.of(error).as_json()
        body = _json(refusal(delivery.job_id, error.message, told)) if job is None else await self._result_json(job)
        buried = replace(delivery, body=PARTNER_KEY.sub(rb'\1""', delivery.body))  # which would outlive the job
        await self._connection.until_reached(lambda: self._broker.bury(buried, error.code, body))

    async def _followed(self, job_id: str, job: Job) -> bool:
        """Publish a job's progress until its end is on disk. Returns False if the job is no longer this worker's."""
        sent_at = 0.0
        with self._pipeline.feed.watch(job.id) as changed:
            while not self._pipeline.has_ended(job):
                if self._pipeline.is_deferred(job) and self._is_stopping:
                    return False  # given back, or kept for the next start
                if time.monotonic() - sent_at >= EVENT_SECONDS:
                    sent_at = time.monotonic()
                    await self._publish(job_id, job)
                changed.clear()
                if not self._pipeline.has_ended(job):
                    await _within(changed.wait(), EVENT_SECONDS if sent_at else None)
        return not job.is_handed_back

    async def _publish(self, job_id: str, job: Job) -> None:
        event = {
            "id": job.public_id, "status": job.state.value, "message": job.message,
            "percent": round(job.progress.percent, 1), "seq": job.seq,
        }  # fmt: skip
        try:
            await self._broker.publish(job_id, _json(event))
        except BrokerUnreachable as error:
            self._connection.lost(error)

    async def _result_json(self, job: Job) -> bytes:
        return _json(await self._result_of(job))

    async def _hand_back(self, held: _Held) -> None:
        """Leave a job to another worker; one that the broker has lost stays on disk for the next start."""
        try:
            is_taken_back = await self._broker.give_back(held.receipt)
        except BrokerUnreachable as error:  # the lease runs out
            self._connection.lost(error)
            is_taken_back = False
        if is_taken_back and held.job is not None:
            self._drop(held.job)

    def _drop(self, job: Job) -> None:
        """End a job here without a result: it is, or will be, another worker's."""
        if not job.state.is_terminal:
            log.info("job handed back", request_id=job.id)
            job.is_handed_back = True
            self._pipeline.cancel(job)

    # beside the deliveries

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(self._broker.lease_seconds / 3)
            held = dict(self._held)
            if not held:
                continue
            try:
                ours = await self._broker.renew(held)
            except BrokerUnreachable as error:
                self._connection.lost(error)
                continue
            self._connection.reached()
            for receipt in held.keys() - ours:
                lost = self._held.get(receipt)
                if lost is not None and lost.job is not None:
                    self._drop(lost.job)

    async def _renewed(self, receipts: Sequence[str]) -> set[str]:
        if not receipts:
            return set()
        while True:
            try:
                return await self._broker.renew(receipts)
            except BrokerUnreachable as error:
                await self._connection.pause(error)

    async def _watch_cancellations(self) -> None:
        while True:
            await asyncio.sleep(CANCEL_CHECK_SECONDS)
            jobs = {held.job_id: held.job for held in self._held.values() if held.job is not None}
            if not jobs:
                continue
            try:
                for job_id in await self._broker.cancelled(jobs):
                    self._pipeline.cancel(jobs[job_id])
            except BrokerUnreachable as error:
                self._connection.lost(error)

    async def _announce(self) -> None:
        while not self._is_stopping:
            try:
                await self._announcer.announce(self._consumer, list(reversed(self._models)))
            except EngineUnreachable:
                await asyncio.sleep(ENGINE_PAUSE_SECONDS)
                continue
            except BrokerUnreachable as error:
                self._connection.lost(error)
            await asyncio.sleep(FLEET_SECONDS / 3)


def _report_failure(task: asyncio.Task[None], error: BaseException) -> None:
    log.error("intake task failed", task=task.get_name(), exc_info=error)


async def _within(waiting: Coroutine[Any, Any, object], seconds: float | None) -> None:
    try:
        await asyncio.wait_for(waiting, seconds)
    except TimeoutError:
        return


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
