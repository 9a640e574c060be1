"""Front: builds the services, starts the engine, qualifies the machine, opens the gate, and shuts everything down.

The HTTP server replies from the start (`/live`, `/health`, `/ready`); jobs are accepted when the gate opens. Jobs that
the last front left unfinished resume as soon as an engine is up.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from darkroom.contract.graph.work import ModelFile, model_files_in
from darkroom.modifiers.registry import ModifierRegistry, build_registry
from darkroom.worker.api.services import Services
from darkroom.worker.app.external_io import ExternalIo
from darkroom.worker.app.integrations import build_broker
from darkroom.worker.app.platform import build_platform
from darkroom.worker.autoscaler.speed import assumed_speed, measured_speed
from darkroom.worker.doctor.examination import examine
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.families import Family
from darkroom.worker.engines.fleet import EngineFleet
from darkroom.worker.engines.health import Floor
from darkroom.worker.engines.interface import EngineInterface
from darkroom.worker.engines.metrics import EngineMetrics
from darkroom.worker.errors import (
    EngineStartFailed,
    EngineUnreachable,
    StateUnusable,
    TryLater,
    WorkerError,
    error_codes,
)
from darkroom.worker.guard.bodies import Bodies
from darkroom.worker.guard.identity.browser_sessions import BrowserSessions
from darkroom.worker.guard.identity.own_key import OwnKey
from darkroom.worker.guard.listener.connections import ConnectionTable, connection_table
from darkroom.worker.guard.rate_limits import RateLimits, key_name_of
from darkroom.worker.jobs.admission import Admission, Gate, free_bytes_of
from darkroom.worker.jobs.caller_quota import CallerQuota, StoredElsewhere
from darkroom.worker.jobs.event_notices import EventNotices
from darkroom.worker.jobs.expiry import Expiry
from darkroom.worker.jobs.job_log import JobLog
from darkroom.worker.jobs.job_models import JobModels
from darkroom.worker.jobs.job_spans import JobSpans
from darkroom.worker.jobs.manifest_state import ManifestState
from darkroom.worker.jobs.outbox import Outbox, webhooks_of
from darkroom.worker.jobs.pace_file import PaceFile
from darkroom.worker.jobs.pipeline.parts import PipelineHooks, PipelineLimits, PipelineParts
from darkroom.worker.jobs.pipeline.pipeline import Pipeline
from darkroom.worker.jobs.queue_info import QueueInfo
from darkroom.worker.jobs.redelivery import Redelivery
from darkroom.worker.jobs.removal import JobRemoval
from darkroom.worker.jobs.wait_estimate import RunClock
from darkroom.worker.json.values import JsonObject
from darkroom.worker.models.library import build_library
from darkroom.worker.observe.gpu_metrics import GpuMetrics
from darkroom.worker.observe.heap_trimming import HeapTrimming
from darkroom.worker.observe.http_metrics import HttpMetrics
from darkroom.worker.observe.io_metrics import IoMetrics
from darkroom.worker.observe.log_markers import write_marker
from darkroom.worker.observe.machine_metrics import MachineMetrics
from darkroom.worker.observe.memory import MachineMemory
from darkroom.worker.observe.metrics import EndedJob, LabelValues, Metrics, Waiting
from darkroom.worker.observe.model_metrics import ModelMetrics
from darkroom.worker.observe.prompt_texts import PromptTexts
from darkroom.worker.observe.scrape import Scrape
from darkroom.worker.observe.tracer import build_tracer
from darkroom.worker.observe.ttl_cached import TtlCached
from darkroom.worker.outputs.links import LinkSigner
from darkroom.worker.outputs.public import public_record
from darkroom.worker.prompts.modifier_defaults import KINDS, checkpoints_of, find_all_defaults
from darkroom.worker.prompts.rules import PromptRules
from darkroom.worker.qualification.phases import Phase, StartUpPhases
from darkroom.worker.qualification.qualifier import Qualifier
from darkroom.worker.qualification.readiness import Readiness
from darkroom.worker.qualification.state import VERDICTS, Qualification
from darkroom.worker.qualification.warm_up import WarmUp
from darkroom.worker.settings.jobs import QueueLimits
from darkroom.worker.settings.platforms import VastTiming
from darkroom.worker.settings.settings import Settings
from darkroom.worker.settings.workload import Workload
from darkroom.worker.sources.intake import Intake
from darkroom.worker.storage.asset_store import AssetStore
from darkroom.worker.storage.job import Credentials, Job, JobState, JobTimes
from darkroom.worker.storage.postgres_database import PostgresDatabase
from darkroom.worker.storage.state_directory import StateDirectory
from darkroom.worker.storage.store import JobStore
from darkroom.worker.storage.webhook_rows import WebhookRow
from darkroom.worker.storage.workflow_store import WorkflowStore
from darkroom.worker.version import version

LINK_KEY_BYTES = 32
LEARN_SECONDS = 60.0  # between looks at the families of model files
PACE_DELAY_SECONDS = 1.0
EXIT_UNRECOVERABLE = 4

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
        self._phases = StartUpPhases()
        self._connections = connections or connection_table(settings.connections)
        self._settings = settings
        self._setting_warnings = setting_warnings
        self._vast_timing = vast_timing or VastTiming()
        self._stop_server = stop_server
        self._prompt_texts = prompt_texts or PromptTexts()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.start_problem = ""  # the reason why the front could not start
        self._memory = MachineMemory()
        self._fleet = EngineFleet(
            settings.engine_launch(),
            settings.supervision,
            min_free_bytes=settings.queue.min_free_memory_bytes,
            on_first_up=self._go_on,
            on_device_lost=self.device_was_lost,
            on_failed=self._engine_failed,
            on_all_failed=self._give_up,
            prepare=self._prepare,
            memory=self._memory,
        )
        self.store = JobStore(
            settings.folders.state_path,
            database=PostgresDatabase(settings.database) if settings.database.is_set else None,
            on_taken_over=self._taken_over,
            held=held,
        )
        self._io_metrics = IoMetrics()
        self._own_key = OwnKey(settings.folders.state_path)
        self._pace = PaceFile(settings.folders.state_path)
        self._pace_writing: asyncio.Task[None] | None = None
        self._external_io = ExternalIo(settings, self._io_metrics, self._own_key.secret)
        self._model_metrics = ModelMetrics()
        self._models = JobModels(
            build_library(settings),
            settings.models,
            settings.folders.state_path,
            self._model_metrics,
            self._forget_choices,
        )
        self._checkpoints = self._external_io.build_checkpoints(settings)
        self._tracer = build_tracer(settings.tracing)
        self._spans = JobSpans(self._tracer)
        sender = self._external_io.webhook_sender
        self._assets = AssetStore(
            self.store,
            self._external_io.uploads,
            settings.queue.min_free_disk_bytes,
            settings.retention.result_ttl_seconds,
        )
        self._outbox = Outbox(self.store, sender, settings.webhook, self._io_metrics, self._tracer)
        self.services = self._build_services()
        self._intake = self._build_intake()
        self.services = replace(self.services, intake=self._intake)
        self._readiness = self._build_readiness()
        self._notices = EventNotices(
            self.services.pipeline.feed, sender, settings.webhook, traceparent_of=self._spans.traceparent_of
        )

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
        self._own_key.publish()
        for job in self.store.jobs.values():
            self._external_io.uploads.hold(job.prompt, job.id)  # they cannot be fetched again
        await self.services.caller_quota.load(self.store)
        if self.services.caller_quota.counts_bytes:
            await self._assets.load()
        await self.services.platform.start()
        self._outbox.start()
        self.services.pipeline.watch_deadlines()
        self._spawn(self._bring_up(engines))
        self._spawn(self._external_io.s3_target.report_own_store())
        expiry = self._build_expiry()
        await expiry.remove_orphans()
        if self._intake is not None:
            self._spawn(self._intake.run_forever())
        self._spawn(expiry.run_forever())
        self._spawn(HeapTrimming().run_forever())
        self._spawn(self.services.manifest_state.run_forever())
        if self._settings.models.limits_disk:
            self._spawn(self._models.run_forever())
        try:
            yield
        finally:
            await self._shut_down()

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

    # construction

    def _taken_over(self) -> None:
        """Stop: another worker has this one's jobs."""
        log.error("job database taken over by another worker")
        self._stop_server(EXIT_UNRECOVERABLE)

    def _build_services(self) -> Services:
        settings = self._settings
        limits = settings.queue_limits()
        pool = self._fleet.pool
        gate, clock = Gate(), RunClock(self._pace.read())
        queue_info = self._build_queue_info(clock)
        free_bytes = TtlCached(free_bytes_of(settings.folders.state_path, self._external_io.input_directory))
        available_bytes = TtlCached(self._memory.available_bytes)
        admission = Admission(self.store, gate, limits, queue_info, free_bytes, available_bytes)
        pipeline = self._build_pipeline(limits)
        quota = self._build_caller_quota(queue_info)
        http_metrics, (metrics, scrape) = HttpMetrics(), self._build_metrics(pipeline, queue_info)
        metrics.registry.register(http_metrics)
        platform, platform_routes = build_platform(
            settings, metrics.registry, self._cancel, self._stop_server, self._vast_timing
        )
        return Services(
            store=self.store,
            pool=pool,
            fleet=self._fleet,
            pipeline=pipeline,
            admission=admission,
            gate=gate,
            inputs=self._external_io.inputs,
            models=self._models,
            manifest_state=ManifestState(self._models.library, pool),
            uploads=self._external_io.uploads,
            modifiers=self._modifiers(),
            links=LinkSigner(self._link_key(), settings.outputs.link_seconds),
            metrics=metrics,
            http_metrics=http_metrics,
            scrape=scrape,
            tracer=self._tracer,
            examine=lambda: examine(settings, self._setting_warnings, is_within_worker=True),
            guard=self._external_io.guard,
            qualification=Qualification(self._benchmark_now),
            outputs=settings.outputs,
            webhook=settings.webhook,
            limits=limits,
            supervision=settings.supervision,
            floors=lambda: [
                Floor("disk", free_bytes(), max(1, limits.min_free_disk_bytes)),
                Floor("memory", available_bytes(), limits.min_free_memory_bytes),
            ],
            prompt_rules=PromptRules(settings.prompts, settings.node_policy),
            workflows=WorkflowStore(self.store),
            assets=self._assets,
            caller_limits=settings.callers,
            caller_rates=RateLimits(settings.callers),
            caller_quota=quota,
            removal=JobRemoval(self.store, quota.files_removed),
            redelivery=Redelivery(self.store, self._external_io.outputs),
            bodies=Bodies(settings.bodies, settings.json_limits()),
            connections=self._connections,
            hsts_seconds=settings.listener.hsts_seconds,
            check_webhook_url=self._external_io.check_webhook_url,
            targets=self._external_io.targets,
            platform=platform,
            platform_routes=platform_routes,
            queue_info=queue_info,
            metrics_are_open=settings.access.metrics_are_open,
            run_clock=clock,
            outbox=self._outbox,
            sessions=BrowserSessions(),
            interface=EngineInterface(pool) if settings.engine.has_front_end else None,
            has_access_log=settings.log.has_access_log,
            price_per_hour=settings.broker.price_per_hour,
            splits_requests=settings.engine.splits_requests,
            shows_folders=not settings.asks_for_keys,
        )

    def _build_metrics(self, pipeline: Pipeline, queue_info: QueueInfo) -> tuple[Metrics, Scrape]:
        settings = self._settings
        engines, gpus = EngineMetrics(self._fleet.reports), GpuMetrics()
        folders = {"state": settings.folders.state_path, "base": settings.engine_launch().base_directory}
        machine = MachineMetrics(self._memory, {**folders, "inputs": self._external_io.input_directory})
        metrics = Metrics(
            LabelValues(
                states=[state.value for state in JobState if state.is_terminal],
                stages=list(JobTimes(0).phase_ms),
                codes=error_codes(),
                verdicts=VERDICTS,
                phases=[phase.value for phase in Phase],
            ),
            version(),
            pipeline.counts,
            lambda: Waiting(*queue_info.waiting()),
            engines,
            machine,
            gpus,
            *self._io_metrics.collectors,
            *self._model_metrics.collectors,
        )

        async def ask_engines() -> None:
            await asyncio.to_thread(engines.show, await self._fleet.metrics_texts())  # parsing them takes long

        return metrics, Scrape([ask_engines, gpus.read, machine.read, self._outbox.show_counts])

    def _build_queue_info(self, clock: RunClock) -> QueueInfo:
        return QueueInfo(
            self.store.jobs.values,
            lambda: len(self._fleet.pool.clients_serving),
            clock,
            lambda priority: self.store.turn_ms(int(time.time() * 1000), priority),
        )

    def _build_pipeline(self, limits: QueueLimits) -> Pipeline:
        settings = self._settings
        return Pipeline(
            self.store,
            self._fleet.pool,
            PipelineParts(self._external_io.inputs, self._external_io.outputs, self._models, self._checkpoints),
            PipelineLimits(
                limits.job_timeout_seconds,
                settings.pipeline.num_fetching,
                settings.callers.jobs_running,
                settings.checkpoints.preempt_priority,
            ),
            PipelineHooks(
                self._webhooks, self._job_started, self._job_ended, on_accepted=lambda job: self._notices.follow(job)
            ),
            job_log=JobLog(self._prompt_texts, has_prompts=settings.log.has_prompts),
            spans=self._spans,
        )

    def _build_intake(self) -> Intake | None:
        """Return the intake of jobs from the broker; None without one. Raises SettingsInvalid."""
        config = self._settings.broker
        broker = build_broker(config)
        if broker is None:
            return None
        from darkroom.worker.api.broker_messages import (  # most workers have no broker
            accept_message,
            message_result,
            refuse_message,
        )

        services = self.services
        return Intake(
            broker,
            config,
            self.store,
            services.pipeline,
            accept=lambda delivery: accept_message(services, delivery),
            refuse=lambda delivery, error: refuse_message(services, delivery, error),
            result_of=lambda job: message_result(services, job),
            has_room=self._has_room,
            models_of=lambda job: [file.name for file in model_files_in(job.prompt)],
            node_list=lambda: services.pool.any_client.known_object_info(),
            facts=self._routing_facts,
        )

    def _routing_facts(self) -> JsonObject:
        """Return the facts for gateways' routing: cost per second, price per hour, a new job's wait in seconds."""
        seconds = self.services.run_clock.seconds_of(1.0)
        return {
            "speed": 1 / seconds if seconds > 0 else 0.0,
            "price_per_hour": self._settings.broker.price_per_hour,
            "wait_seconds": round(self.services.queue_info.wait_of_a_new_job(), 3),
        }

    def _forget_choices(self) -> None:
        """Have the engines asked anew for their files. May be called from any thread."""
        for client in self._fleet.pool.clients:
            client.facts.forget_object_info()

    def _has_room(self) -> bool:
        try:
            self.services.admission.check_room()
        except TryLater:
            return False
        return bool(self.services.pool.clients_serving)

    def _build_caller_quota(self, queue_info: QueueInfo) -> CallerQuota:
        return CallerQuota(
            self._settings.callers,
            self.store.jobs.values,
            lambda: queue_info.seconds_per_job,
            self._settings.retention.result_ttl_seconds,
            StoredElsewhere(self._external_io.inputs.held_bytes, self._checkpoint_bytes, self._asset_bytes),
        )

    def _checkpoint_bytes(self, job: Job) -> int:
        return 0 if self._checkpoints is None else self._checkpoints.bytes_of(job)

    def _asset_bytes(self, caller: str) -> int:
        """Return the bytes of a caller's assets; callers without a key have one sum together."""
        return self._assets.used_bytes(key_name_of(caller))

    def _build_readiness(self) -> Readiness:
        settings, services = self._settings, self.services
        base = settings.engine_launch().base_directory
        config = settings.benchmark
        return Readiness(
            Qualifier(config, base, settings.folders.state_path, services.modifiers, self._fetch_inputs),
            WarmUp(settings.warm_up, services.modifiers, self._fetch_inputs, self._models.preload_names),
            services.pool,
            services.gate,
            services.qualification,
            self._phases,
            config.on_fail,
            self,
        )

    async def _benchmark_now(self) -> None:
        await self._readiness.benchmark_now()

    async def _fetch_inputs(self, prompt: JsonObject, engine: EngineClient) -> JsonObject:
        return await self._external_io.inputs.fetch_for(prompt, "benchmark", None, engine)

    def _modifiers(self) -> ModifierRegistry:
        registry = build_registry(self._settings.folders.modifiers_path)
        for broken in registry.broken:
            log.error("modifier unusable", file=broken.source, reason=broken.reason)
        return registry

    def _build_expiry(self) -> Expiry:
        return Expiry(
            self.store,
            self._outbox,
            self._settings.retention,
            self._external_io.inputs,
            self._external_io.claimed_outputs,
            [client.folders.temp for client in self.services.pool.clients if client.folders is not None],
            self.services.removal,
            self._assets.forget_unused,
            None if self._checkpoints is None else self._checkpoints.forget_old,
        )

    def _link_key(self) -> bytes:
        """Return the key of links, created once so that links remain valid after a restart. Raises StateUnusable."""
        path = self._settings.folders.state_path / "keys" / "links"
        try:
            return self._stored_link_key(path)
        except OSError as error:
            reason = error.strerror or error
            raise StateUnusable(f"{path}: cannot be read or written: {reason}; check STATE_DIRECTORY") from None

    @staticmethod
    def _stored_link_key(path: Path) -> bytes:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = path.read_bytes() if path.exists() else b""
        if len(key) != LINK_KEY_BYTES:  # none yet, or truncated by a crash: with an empty key every caller could sign
            key = secrets.token_bytes(LINK_KEY_BYTES)
            whole = path.with_suffix(".new")
            whole.touch(mode=0o600)
            whole.write_bytes(key)
            whole.replace(path)
        return key

    # start-up

    async def _bring_up(self, engines: asyncio.Task[None]) -> None:
        self._spawn(self._readiness.run_forever(self._fleet.has_been_up))  # holds the engines before they are up
        try:
            await engines
        except EngineStartFailed as error:
            log.error("engine did not start", reason=error.message)
            self.services.platform.autoscaler.error_set(f"The engine did not start: {error.message}")
            write_marker("BACKEND_UNRECOVERABLE")
            self._stop_server(1)
            return
        self._spawn(self._fleet.watch())
        self._spawn(self._keep_families())

    # outcomes of the benchmark (an `Announcer`)

    def ready(self, *, was_closed: bool) -> None:
        platform = self.services.platform
        platform.autoscaler.error_cleared()
        measured = measured_speed(self.services.qualification.report, platform.workload)
        is_estimate = bool(self.services.qualification.report.get("workload_is_estimate"))
        num_engines = max(1, len(self.services.pool.clients_serving))
        self.services.run_clock.expect(measured / num_engines, is_estimate=is_estimate)
        assumed = assumed_speed(self._settings.autoscaler.assumed_speed, platform.workload)
        platform.autoscaler.loaded(measured or assumed)
        self._spawn(self._learn_families())
        if was_closed:
            write_marker("BACKENDS_READY")

    async def _keep_families(self) -> None:
        """Learn the families of files that are added while the worker runs."""
        while True:
            await asyncio.sleep(LEARN_SECONDS)
            for client in self.services.pool.clients_serving:
                if client.has_check:
                    with contextlib.suppress(EngineUnreachable):
                        await client.families.learn(KINDS)

    async def _learn_families(self) -> None:
        """Learn the families of the engines' models, so that jobs can be priced and made while an engine is away."""
        modifiers = self.services.modifiers
        for client in self.services.pool.clients_serving:
            if not client.has_check:  # it has none
                continue
            with contextlib.suppress(EngineUnreachable):
                await client.families.learn(KINDS)
                checkpoints = checkpoints_of(await client.object_info())
                await find_all_defaults(client, modifiers, checkpoints, modifiers.names())

    def not_ready(self, reason: str, *, is_new: bool) -> None:
        self.services.platform.autoscaler.error_set(reason)
        if is_new:
            write_marker("BACKENDS_READY_TIMEOUT")

    def unqualified(self, exit_code: int) -> None:
        self._stop_server(exit_code)

    async def _prepare(self, client: EngineClient) -> None:
        await self._readiness.prepare(client)

    def device_was_lost(self, client: EngineClient) -> None:
        """Suspect an engine that restarts because of its device; the device has to pass the benchmark again."""
        self._readiness.device_was_lost(client)

    def _engine_failed(self, client: EngineClient) -> None:
        self._readiness.engine_failed(client)

    def _give_up(self) -> None:
        """Shut down because no engine of ours comes back. The jobs stay on disk for the front that replaces it."""
        self.services.gate.close("No engine can be started any more")
        self.services.platform.autoscaler.error_set("No engine can be started any more")
        write_marker("BACKEND_UNRECOVERABLE")
        self._stop_server(EXIT_UNRECOVERABLE)

    async def _go_on(self) -> None:
        platform, jobs = self.services.platform, list(self.store.jobs.values())
        families = await self._families_of(jobs) if platform.workload is Workload.COMPUTED else {}
        for job in jobs:
            job.cost = platform.price_of(job.prompt, families).cost
            platform.job_accepted(job, None)
        log.info("jobs recovered", count=self.services.pipeline.recover())

    async def _families_of(self, jobs: Iterable[Job]) -> Mapping[ModelFile, Family]:
        """Return the families of the models that jobs name; without an answer of the engine none are known."""
        files = dict.fromkeys(file for job in jobs for file in model_files_in(job.prompt))
        try:
            return await self.services.pool.any_client.families.of(files)
        except EngineUnreachable:
            return {}

    # while it runs

    def _webhooks(self, job: Job, kept: Credentials | None) -> list[WebhookRow]:
        if job.is_handed_back or job.request.webhook is None:
            return []  # handed back: the worker that ends it sends it
        base = self.services.outputs.public_url or job.request.base_url
        link = partial(self._link, base, job.id) if base else None
        shows_folders = self.services.shows_folders
        outputs = [public_record(record, link, shows_folders=shows_folders) for record in job.outputs]
        return webhooks_of(job, kept, self.services.webhook, outputs)

    def _cancel(self, job_id: str) -> None:
        job = self.store.jobs.get(job_id)
        if job is not None and not self.services.pipeline.is_deferred(job):
            self.services.pipeline.cancel(job)

    def _job_started(self, job: Job) -> None:
        self.services.platform.autoscaler.job_started(job.id)
        if job.attempt == 1:  # else the first run is in it
            self.services.metrics.job_started(time.time() - job.times.queued_at_ms / 1000)

    def _link(self, base: str, job_id: str, path: str) -> str:
        return self.services.links.link(base, job_id, path, time.time())

    def _job_ended(self, job: Job) -> None:
        self.services.platform.autoscaler.job_ended(job.id, job.state)
        self._notices.leave(job)
        self.services.metrics.job_ended(
            EndedJob(
                job.state.value,
                job.times.phase_ms,
                ((job.times.completed_at_ms or job.times.queued_at_ms) - job.times.queued_at_ms) / 1000,
                job.run_seconds,
                len(job.outputs),
                None if job.failure is None else job.failure.code,
            )
        )
        self.services.caller_quota.job_ended(job)
        if job.run_seconds is not None:
            is_good = job.state is JobState.COMPLETED
            self.services.run_clock.add(job.run_seconds, job.cost, len(job.outputs) if is_good else 0)
            self._keep_pace()
        if job.request.webhook is not None:
            self._outbox.wake()

    def _keep_pace(self) -> None:
        """Store the pace for the next start, now or when the last storing has ended."""
        if self._pace_writing is None or self._pace_writing.done():
            self._pace_writing = asyncio.create_task(self._write_pace(), name="pace-write")

    async def _write_pace(self) -> None:
        await asyncio.sleep(PACE_DELAY_SECONDS)  # for many short jobs one write
        await asyncio.to_thread(self._pace.write, self.services.run_clock.known_runs)

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("front task failed", exc_info=task.exception())
            self._stop_server(1)

    def _on_drain_signal(self) -> None:
        if self.services.gate.is_draining:
            self.services.pipeline.end_drain()
        else:
            self.services.gate.drain()
            self._spawn(self._drain())

    async def _drain(self) -> None:
        log.info("draining", seconds=self._settings.pipeline.drain_seconds)
        self.services.platform.autoscaler.draining()
        self.services.pipeline.hand_out_no_engine()
        if self._intake is not None:
            await self._intake.stop()
        await self.services.pipeline.drain(self._settings.pipeline.drain_seconds)
        self._stop_server(0)

    async def _shut_down(self) -> None:
        is_drained = self.services.gate.is_draining
        self.services.gate.drain()
        self.services.platform.autoscaler.draining()
        self.services.pipeline.hand_out_no_engine()
        if self._intake is not None:
            await self._intake.stop()
        await self.services.pipeline.drain(0 if is_drained else self._settings.pipeline.drain_seconds)
        if self._intake is not None:
            await self._intake.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._notices.stop()
        if self._pace_writing is not None:
            self._pace_writing.cancel()
            await asyncio.to_thread(self._pace.write, self.services.run_clock.known_runs)
        await self._outbox.stop()
        await self._fleet.stop(is_immediate=self.services.pipeline.has_drain_ended)
        await self.services.platform.close()
        if self._checkpoints is not None:
            await self._checkpoints.close()
        if self.services.interface is not None:
            await self.services.interface.close()
        await self._external_io.close()
        await self._models.close()
        self._spans.close()
        self._own_key.withdraw()
        with contextlib.suppress(WorkerError):
            await self.store.close()
        await asyncio.to_thread(self._tracer.close)  # last: its receiver may not answer
