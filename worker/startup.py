"""Front: puts the services together, brings the engine up, qualifies the machine, opens the gate; and stops it all.

The HTTP server answers from the first moment (`/live`, `/health`, `/ready`); jobs are taken when the gate opens. Jobs
that the last front left unfinished go on as soon as an engine is up.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog

from modifiers.registry import build_registry
from worker.api.links import LinkSigner
from worker.edges import Edges
from worker.engine.client import EngineClient, LocalFolders
from worker.engine.pool import EnginePool
from worker.engine.supervisor import EngineProcess, engine_command, read_processor_flags
from worker.errors import EngineStartFailed, EngineUnreachable, NotReady, WorkerError
from worker.jobs.admission import Admission, Gate, free_bytes_of
from worker.jobs.job import Credentials, Job
from worker.jobs.outbox import Outbox, webhook_of
from worker.jobs.pipeline import Pipeline, PipelineLimits
from worker.jobs.queue_info import QueueInfo
from worker.jobs.store import JobStore, WebhookRow
from worker.observe.metrics import Metrics
from worker.qualification import Qualifier
from worker.services import Qualification, Services
from worker.settings import Settings, child_environment

EXPIRY_SECONDS = 60.0
LINK_KEY_BYTES = 32
RETRY_SECONDS = (1.0, 5.0)  # between tries of a benchmark that failed
FOREIGN_LOOK_SECONDS = 2.0

log = structlog.get_logger("startup")


class Front:
    """Everything that lives as long as the server. `lifespan()` starts and stops it."""

    def __init__(self, settings: Settings, stop_server: Callable[[int], None]) -> None:
        self._settings = settings
        self._stop_server = stop_server
        self._launch = settings.engine_launch()
        self._processes: list[EngineProcess] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._an_engine_is_up = asyncio.Event()
        self.store = JobStore(settings.state_path())
        self._edges = Edges(settings)
        self._outbox = Outbox(self.store, self._edges.webhook_sender)
        self.services = self._build_services()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        await self.store.open()
        await self._edges.start()
        self._outbox.start()
        self._spawn(self._bring_up())
        self._spawn(self._expire())
        try:
            yield
        finally:
            await self._shut_down()

    # putting together

    def _build_services(self) -> Services:
        settings = self._settings
        limits = settings.queue_limits()
        pool = EnginePool(self._make_clients())
        for client in pool.clients:
            pool.set_up(client, False)
        gate = Gate()
        admission = Admission(self.store, gate, limits, len(pool.clients), free_bytes_of(self._state_parent()))
        pipeline = Pipeline(
            self.store,
            pool,
            self._edges.inputs,
            self._edges.outputs,
            PipelineLimits(limits.job_timeout_seconds, settings.preprocess_workers, settings.postprocess_workers),
            make_webhook=self._webhook,
            on_end=self._job_ended,
        )
        return Services(
            store=self.store,
            pool=pool,
            pipeline=pipeline,
            admission=admission,
            gate=gate,
            inputs=self._edges.inputs,
            modifiers=build_registry(),
            links=LinkSigner(self._link_key(), settings.output_link_seconds),
            metrics=Metrics(pipeline.counts),
            guard=self._edges.guard,
            qualification=Qualification(),
            outputs=settings.output_config(),
            webhook=settings.webhook_config(),
            limits=limits,
            max_request_bytes=settings.max_request_bytes,
            check_webhook_url=self._edges.check_webhook_url,
            unwrap_vast=self._edges.unwrap_vast,
            queue_info=QueueInfo(self.store, admission),
        )

    def _make_clients(self) -> list[EngineClient]:
        if self._launch.urls:
            return [EngineClient(url) for url in self._launch.urls]
        command = engine_command(self._launch, child_environment(), read_processor_flags())
        process = EngineProcess(command, on_lost=self._engine_lost)
        self._processes.append(process)
        base = self._launch.base_directory
        folders = LocalFolders(base / "input", base / "output", base / "temp")
        return [EngineClient(process.url, folders=folders, has_check=True)]

    def _state_parent(self) -> Path:
        path = self._settings.state_path()
        while not path.exists():
            path = path.parent
        return path

    def _link_key(self) -> bytes:
        """Made once; kept so that links outlive a restart."""
        path = self._settings.state_path() / "keys" / "links"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = path.read_bytes() if path.exists() else b""
        if len(key) != LINK_KEY_BYTES:  # none yet, or cut off by a crash: an empty key would let anybody sign
            key = secrets.token_bytes(LINK_KEY_BYTES)
            whole = path.with_suffix(".new")
            whole.touch(mode=0o600)
            whole.write_bytes(key)
            whole.replace(path)
        return key

    # bringing up

    async def _bring_up(self) -> None:
        try:
            if self._processes:
                await asyncio.gather(*(process.start() for process in self._processes))
            for client in self.services.pool.clients:
                await client.start()
                self._spawn(self._watch_engine(client))
            await self._an_engine_is_up.wait()
            await self._qualify()
        except EngineStartFailed as error:
            log.error("engine did not start", reason=error.message)
            _say("BACKEND_UNRECOVERABLE")
            self._stop_server(1)
            return
        except WorkerError as error:
            log.error("start-up failed", reason=error.message)
            self.services.gate.close(error.message)
            _say("BACKENDS_READY_TIMEOUT")
            return
        self.services.gate.open()
        _say("BACKENDS_READY")

    async def _qualify(self) -> None:
        self.services.gate.close("The start-up benchmark is running")
        models = self._launch.base_directory / "models"
        qualifier = Qualifier(self._settings.benchmark_config(), self.services.pool, self.store, models)
        for pause in (*RETRY_SECONDS, None):
            found = await qualifier.qualify()
            self.services.qualification.report = found
            if found["verdict"] != "failed":
                return
            log.error("benchmark failed", reason=found["reason"], retry_in_seconds=pause)
            if pause is not None:
                await asyncio.sleep(pause)
        raise NotReady(f"The start-up benchmark failed: {self.services.qualification.report['reason']}")

    async def _watch_engine(self, client: EngineClient) -> None:
        """Keeps the pool's knowledge of one engine true."""
        process = self._process_of(client)
        while True:
            if process is not None:
                await process.wait_until_answering()
            is_up = await self._answers(client)
            if is_up != self._is_up(client):
                if not is_up:
                    client.forget_object_info()
                log.info("engine is up" if is_up else "engine is down", url=client.url)
            self.services.pool.set_up(client, is_up)
            if is_up and not self._an_engine_is_up.is_set():
                self._an_engine_is_up.set()
                log.info("jobs recovered", count=self.services.pipeline.recover())
            await asyncio.sleep(FOREIGN_LOOK_SECONDS if is_up else 0.1)

    async def _answers(self, client: EngineClient) -> bool:
        try:
            await client.system_stats()
            await client.object_info()
        except EngineUnreachable:
            return False
        return True

    def _is_up(self, client: EngineClient) -> bool:
        return any(url == client.url and is_up for url, is_up, _ in self.services.pool.states)

    def _process_of(self, client: EngineClient) -> EngineProcess | None:
        return next((process for process in self._processes if process.url == client.url), None)

    def _engine_lost(self) -> None:
        for process in self._processes:
            if not process.is_answering:
                for client in self.services.pool.clients:
                    if client.url == process.url:
                        self.services.pool.set_up(client, False)
                        client.forget_object_info()  # so that it counts as up only when the new one has its nodes
                        client.mark_lost()

    # while it runs

    def _webhook(self, job: Job, kept: Credentials | None) -> WebhookRow | None:
        base = self.services.outputs.public_url
        outputs = []
        for record in job.outputs:
            shown = {key: value for key, value in record.items() if key not in ("path", "media_type", "size_bytes")}
            if base and "url" not in shown:
                shown["url"] = self.services.links.link(base, job.id, str(record["path"]), time.time())
            outputs.append(shown)
        return webhook_of(job, kept, self.services.webhook, outputs)

    def _job_ended(self, job: Job) -> None:
        self.services.metrics.job_ended(job)
        if job.times.generation_ms is not None:
            self.services.admission.clock.add(job.times.generation_ms / 1000)
        if job.request.webhook is not None:
            self._outbox.look()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            before = time.time() - self.services.limits.result_ttl_seconds
            try:
                for job_id in await self.store.forget_finished_before(int(before * 1000)):
                    await asyncio.to_thread(shutil.rmtree, self.store.job_directory(job_id), True)
                oldest_ms = min((job.times.queued_at_ms for job in self.store.jobs.values()), default=None)
                unused = before if oldest_ms is None else min(before, oldest_ms / 1000)
                await self._edges.inputs.forget_fetched_before(unused)
            except Exception:  # noqa: BLE001 - the expiry: a disk that fails for a while must not end it
                log.exception("what has expired cannot be removed", retry_in_seconds=EXPIRY_SECONDS)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the front ended", exc_info=task.exception())
            self._stop_server(1)

    async def _shut_down(self) -> None:
        self.services.gate.is_draining = True
        await self.services.pipeline.drain(self._settings.drain_timeout)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._outbox.stop()
        for client in self.services.pool.clients:
            await client.close()
        for process in self._processes:
            await process.stop()
        await self._edges.close()
        with contextlib.suppress(WorkerError):
            await self.store.close()


def _say(token: str) -> None:
    """A word on stdout that other programs wait for in this log."""
    sys.stdout.write(f"{token}\n")
    sys.stdout.flush()
