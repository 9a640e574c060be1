"""Front: builds the areas, starts the engine, qualifies the machine, opens the gate, and shuts everything down.

The HTTP server replies from the start (`/live`, `/health`, `/ready`); jobs are accepted when the gate opens. Jobs that
the last front left unfinished resume as soon as an engine is up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import structlog

from darkroom.worker.app.announcements import EXIT_UNRECOVERABLE, Announcements
from darkroom.worker.app.broker_intake import build_intake
from darkroom.worker.app.fallback import build_fallback
from darkroom.worker.app.family_learning import FamilyLearning
from darkroom.worker.app.job_area import build_jobs
from darkroom.worker.app.job_events import JobEvents
from darkroom.worker.app.metrics import build_metrics
from darkroom.worker.app.platform import build_platform
from darkroom.worker.app.readiness import build_readiness
from darkroom.worker.app.recovered_jobs import read_again
from darkroom.worker.app.services import Areas, build_services
from darkroom.worker.app.storage import build_expiry, build_storage
from darkroom.worker.concurrency.background_tasks import BackgroundTasks
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.fleet import EngineFleet
from darkroom.worker.errors import EngineStartFailed, WorkerError
from darkroom.worker.guard.listener.connections import ConnectionTable, connection_table
from darkroom.worker.jobs.event_notices import EventNotices
from darkroom.worker.jobs.job_log import JobLog
from darkroom.worker.jobs.job_spans import JobSpans
from darkroom.worker.jobs.pace_file import PaceFile
from darkroom.worker.jobs.pipeline.parts import PipelineHooks
from darkroom.worker.jobs.wait_estimate import RunClock
from darkroom.worker.observe.heap_trimming import HeapTrimming
from darkroom.worker.observe.memory import MachineMemory
from darkroom.worker.observe.prompt_texts import PromptTexts
from darkroom.worker.observe.tracer import build_tracer
from darkroom.worker.qualification.phases import StartUpPhases
from darkroom.worker.settings.platforms import VastTiming
from darkroom.worker.settings.settings import Settings
from darkroom.worker.storage.state_directory import StateDirectory

log = structlog.get_logger("startup")


class Front:
    """Owner of everything that lives as long as the server. `lifespan()` starts and stops it.

    `held` is the state directory if this process has its lock already, `connections` the table of the server.
    """

    def __init__(
        self,
        settings: Settings,
        stop_server: Callable[[int], None],
        vast_timing: VastTiming | None = None,
        prompt_texts: PromptTexts | None = None,
        setting_warnings: Sequence[str] = (),
        held: StateDirectory | None = None,
        connections: ConnectionTable | None = None,
    ) -> None:
        self._settings = settings
        self._stop_server = stop_server
        self._tasks = BackgroundTasks(self._task_failed)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.start_problem = ""  # the reason why the front could not start
        memory = MachineMemory()
        self._fleet = self._build_fleet(memory)
        self._fallback = build_fallback(settings, self._fleet, memory)
        self._tracer = build_tracer(settings.tracing)
        self._spans = JobSpans(self._tracer)
        self._storage = build_storage(
            settings,
            self._tracer,
            held=held,
            on_taken_over=self._taken_over,
            on_change=self._forget_choices,
        )
        self.store = self._storage.store
        pace = PaceFile(settings.folders.state_path)
        job_log = JobLog(prompt_texts or PromptTexts(), has_prompts=settings.log.has_prompts)
        self._jobs = build_jobs(
            settings,
            self._storage,
            self._fleet.pool,
            self._fallback,
            memory,
            RunClock(pace.read()),
            self._hooks(),
            job_log,
            self._spans,
        )
        metrics = build_metrics(settings, self._storage, self._fleet, self._fallback, self._jobs, memory)
        platform, platform_routes = build_platform(
            settings, metrics.metrics.registry, self._jobs.cancel, stop_server, vast_timing or VastTiming()
        )
        self._platform = platform
        areas = Areas(
            self._tracer,
            self._fleet,
            self._fallback,
            self._storage,
            self._jobs,
            metrics,
            platform,
            platform_routes,
            self._forget_choices,
        )
        services = build_services(
            settings,
            areas,
            connections or connection_table(settings.connections),
            self._benchmark_now,
            setting_warnings,
        )
        self._intake = build_intake(settings.broker, services, self._jobs.has_room)
        self.services = replace(services, jobs=replace(services.jobs, intake=self._intake))
        self._families = FamilyLearning(self._fleet.pool, services.requests.modifiers)
        self._announcements = Announcements(
            services,
            lambda: self._tasks.spawn(self._families.learn()),
            stop_server,
        )
        self._readiness = build_readiness(
            settings, services, self._storage.external_io.inputs, StartUpPhases(), self._announcements
        )
        notices = EventNotices(
            self._jobs.pipeline.feed,
            self._storage.external_io.webhook_sender,
            settings.webhook,
            traceparent_of=self._spans.traceparent_of,
        )
        self._job_events = JobEvents(services, notices, pace)

    def _build_fleet(self, memory: MachineMemory) -> EngineFleet:
        settings = self._settings
        return EngineFleet(
            settings.engine_launch(),
            settings.supervision,
            min_free_bytes=settings.queue.min_free_memory_bytes,
            on_first_up=self._go_on,
            on_device_lost=self.device_was_lost,
            on_failed=self._engine_failed,
            on_all_failed=self._give_up,
            prepare=self._prepare,
            memory=memory,
        )

    def _hooks(self) -> PipelineHooks:
        """Return the pipeline's hooks, whose owner is built after the pipeline."""
        return PipelineHooks(
            lambda job, kept: self._job_events.webhooks(job, kept),
            lambda job: self._job_events.started(job),
            lambda job: self._job_events.ended(job),
            on_accepted=lambda job: self._job_events.accepted(job),
        )

    # start and stop, in this order

    @asynccontextmanager
    async def lifespan(self, build_app: Callable[[], Awaitable[object]] | None = None) -> AsyncIterator[None]:
        """Start everything, and stop it at the end.

        `build_app` builds the application while the engines start; the worker reports ready only after it.
        """
        self._loop = asyncio.get_running_loop()
        try:
            await self.store.open()
        except WorkerError as error:
            self.start_problem = error.message
            raise
        engines = asyncio.create_task(self._fleet.start(), name="engines-start")
        if build_app is not None:
            try:
                await build_app()
            except BaseException:
                engines.cancel()
                await self._fleet.stop(is_immediate=True)
                raise
        storage, jobs = self._storage, self._jobs
        storage.own_key.publish()
        storage.hold_uploads()
        await jobs.quota.load(self.store)
        if jobs.quota.counts_bytes:
            await storage.assets.load()
        await self._platform.start()
        storage.outbox.start()
        jobs.pipeline.watch_deadlines()
        self._tasks.spawn(self._bring_up(engines))
        self._tasks.spawn(storage.external_io.s3_target.report_own_store())
        expiry = build_expiry(self._settings, storage, self._fleet.pool, jobs.removal)
        await expiry.remove_orphans()
        if self._intake is not None:
            self._tasks.spawn(self._intake.run_forever())
        self._tasks.spawn(expiry.run_forever())
        self._tasks.spawn(HeapTrimming().run_forever())
        self._tasks.spawn(self.services.observation.history.run_forever())
        self._tasks.spawn(self.services.files.manifest_state.run_forever())
        if self._settings.models.limits_disk:
            self._tasks.spawn(storage.models.run_forever())
        try:
            yield
        finally:
            await self._shut_down()

    async def _shut_down(self) -> None:
        storage, jobs = self._storage, self._jobs
        is_drained = jobs.gate.is_draining
        jobs.gate.drain()
        self._platform.autoscaler.draining()
        jobs.pipeline.hand_out_no_engine()
        if self._intake is not None:
            await self._intake.stop()
        await jobs.pipeline.drain(0 if is_drained else self._settings.pipeline.drain_seconds)
        if self._intake is not None:
            await self._intake.close()
        await self._tasks.close()
        await self._job_events.stop()
        await storage.outbox.stop()
        if self._fallback is not None:
            await self._fallback.stop()
        await self._fleet.stop(is_immediate=jobs.pipeline.has_drain_ended)
        await self._platform.close()
        if storage.checkpoints is not None:
            await storage.checkpoints.close()
        if self.services.engines.interface is not None:
            await self.services.engines.interface.close()
        await storage.external_io.close()
        await self.services.files.asked_downloads.close()
        await storage.models.close()
        self._spans.close()
        storage.own_key.withdraw()
        with contextlib.suppress(WorkerError):
            await self.store.close()
        await asyncio.to_thread(self._tracer.close)  # last: its receiver may not answer

    def take_state_directory(self) -> None:
        """Lock the state directory, before the server listens. Raises StateUnusable naming who holds the directory."""
        self.store.take_directory()

    def begin_to_drain(self) -> None:
        """Start to drain, from a signal handler: no new jobs; the server stops when running jobs have ended.

        A second call stops it at once.
        """
        if self._loop is None:
            self._stop_server(0)
        else:
            self._loop.call_soon_threadsafe(self._on_drain_signal)

    def _on_drain_signal(self) -> None:
        if self._jobs.gate.is_draining:
            self._jobs.pipeline.end_drain()
        else:
            self._jobs.gate.drain()
            self._tasks.spawn(self._drain())

    async def _drain(self) -> None:
        log.info("draining", seconds=self._settings.pipeline.drain_seconds)
        self._platform.autoscaler.draining()
        self._jobs.pipeline.hand_out_no_engine()
        if self._intake is not None:
            await self._intake.stop()
        await self._jobs.pipeline.drain(self._settings.pipeline.drain_seconds)
        self._stop_server(0)

    # engines

    async def _bring_up(self, engines: asyncio.Task[None]) -> None:
        self._tasks.spawn(self._readiness.run_forever(self._fleet.has_been_up))  # holds the engines before they are up
        try:
            await engines
        except EngineStartFailed as error:
            log.error("engine did not start", reason=error.message)
            self._announcements.engine_did_not_start(error)
            return
        self._tasks.spawn(self._fleet.watch())
        self._tasks.spawn(self._families.run_forever())

    async def _go_on(self) -> None:
        platform, jobs = self._platform, list(self.store.jobs.values())
        await read_again(jobs, self._fleet.pool.any_client, platform)
        for job in jobs:
            platform.job_accepted(job, None)
        log.info("jobs recovered", count=self._jobs.pipeline.recover())

    async def _prepare(self, client: EngineClient) -> None:
        await self._readiness.prepare(client)

    def device_was_lost(self, client: EngineClient) -> None:
        """Suspect an engine that restarts because of its device; the device has to pass the benchmark again."""
        self._readiness.device_was_lost(client)

    def _engine_failed(self, client: EngineClient) -> None:
        self._readiness.engine_failed(client)

    def _give_up(self) -> None:
        self._announcements.no_engine_left()

    async def _benchmark_now(self) -> None:
        await self._readiness.benchmark_now()

    def _forget_choices(self) -> None:
        """Have the engines asked anew for their files. May be called from any thread."""
        for client in self._fleet.pool.clients:
            client.facts.forget_object_info()

    # ends

    def _taken_over(self) -> None:
        """Stop: another worker has this one's jobs."""
        log.error("job database taken over by another worker")
        self._stop_server(EXIT_UNRECOVERABLE)

    def _task_failed(self, _task: asyncio.Task[None], error: BaseException) -> None:
        log.error("front task failed", exc_info=error)
        self._stop_server(1)
