"""EngineFleet: every engine the front works with, from its start to its end.

It creates the clients and, where the engines are ours, the child processes, one for each GPU; supervises them; replaces
one that has grown too large; reports when none is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Awaitable, Callable

import structlog
from pydantic import SecretStr

from darkroom.host.cores import processor_flags
from darkroom.worker.engines.child import STOP_SECONDS
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.client.presence import HEARTBEAT_SECONDS
from darkroom.worker.engines.command import engine_command
from darkroom.worker.engines.gpus import assign_gpus, find_gpus
from darkroom.worker.engines.heartbeat import HeartbeatLimits
from darkroom.worker.engines.loss import CrashStreak, Loss, LossReason, RestartBudget
from darkroom.worker.engines.pool import GIVE_UP_SECONDS, EnginePool
from darkroom.worker.engines.recycling import MemoryUse, engine_to_recycle, is_over_limit, soft_limit_bytes
from darkroom.worker.engines.sandbox_start import find_user
from darkroom.worker.engines.supervisor import EngineProcess
from darkroom.worker.engines.watch import EngineReport, EngineState, WatchedEngine
from darkroom.worker.errors import EngineStartFailed
from darkroom.worker.observe.memory import MachineMemory
from darkroom.worker.settings.engines import EngineLaunch, SupervisionConfig
from darkroom.worker.settings.environment import child_environment

MEMORY_LOOK_SECONDS = 2.0
IMMEDIATE_STOP_SECONDS = 0.5
RESTART_WINDOW_SECONDS = 600.0  # a fault of the machine shows again within it; rare ones do not add up
METRICS_SECONDS = 1.5
TOKEN_FILE = "token"

log = structlog.get_logger("engines")


async def _nothing(_client: EngineClient) -> None: ...


class EngineFleet:
    """All engines. Use as `await fleet.start()`, `fleet.watch()` as one task, `await fleet.stop()`.

    `on_first_up` is awaited once, when the first engine can take a prompt; `on_device_lost` is called when one is
    replaced because its device failed, or is in doubt because the engine ended under several jobs in a row; `on_failed`
    when one of ours does not come back, `on_all_failed` in its place when it was the last. `prepare` is awaited for one
    that has come up anew, before it takes prompts.
    """

    def __init__(
        self,
        launch: EngineLaunch,
        config: SupervisionConfig,
        *,
        min_free_bytes: int,
        on_first_up: Callable[[], Awaitable[None]],
        on_device_lost: Callable[[EngineClient], None],
        on_failed: Callable[[EngineClient], None],
        on_all_failed: Callable[[], None],
        prepare: Callable[[EngineClient], Awaitable[None]] = _nothing,
        memory: MachineMemory | None = None,
    ) -> None:
        self._config = config
        self._min_free_bytes = min_free_bytes
        self._on_first_up = on_first_up
        self._on_device_lost = on_device_lost
        self._on_failed = on_failed
        self._on_all_failed = on_all_failed
        self._prepare = prepare
        self._memory = memory or MachineMemory()
        self._limits = HeartbeatLimits(config.stall_seconds, config.silence_seconds)
        self._starting: set[asyncio.Task[None]] = set()
        self._token = SecretStr(secrets.token_urlsafe(32))
        self._private_directory = launch.private_directory
        self.has_been_up = asyncio.Event()
        self.engines = self._foreign_engines(launch) if launch.urls else self._own_engines(launch)
        self.pool = EnginePool(
            [engine.client for engine in self.engines],
            launch.runs_at_once + 1,  # one waits there, so that it begins at once
            give_up_seconds=GIVE_UP_SECONDS if launch.urls else None,
        )
        for engine in self.engines:
            self.pool.set_up(engine.client, False)
        self._find_beside: Callable[[], WatchedEngine | None] = lambda: None
        self._end_beside: Callable[[], Awaitable[bool]] | None = None

    def count_beside(self, find: Callable[[], WatchedEngine | None], end_idle: Callable[[], Awaitable[bool]]) -> None:
        """Count the memory of a further engine of this machine with that of these, once `find` returns it.

        `end_idle` ends it if it has no prompt, and returns True if that ended something; it is tried before any engine
        is replaced for its memory.
        """
        self._find_beside, self._end_beside = find, end_idle

    async def start(self) -> None:
        """Start the engines and wait until one of them answers. The others come up later.

        Raises EngineStartFailed when every one of ours has ended before that.
        """
        for engine in self.engines:
            await engine.client.start()
        processes = [engine.process for engine in self.engines if engine.process is not None]
        for process in processes:
            await process.prepare()
        if any(process.has_port for process in processes):
            await asyncio.to_thread(self._write_token)
        waiting = {asyncio.create_task(process.start(), name="engine-start") for process in processes}
        self._starting = set(waiting)
        failed: list[EngineStartFailed] = []
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            errors = [error for task in done if (error := task.exception()) is not None]
            for error in errors:
                if not isinstance(error, EngineStartFailed):
                    raise error
                log.error("engine did not start", reason=error.message)
                failed.append(error)
            if len(errors) < len(done):
                for task in waiting:
                    task.add_done_callback(_log_failed_start)
                return
        if failed:
            raise failed[0]

    async def watch(self) -> None:
        """Supervise the engines and their memory, and keep the pool up to date. Never returns."""
        async with asyncio.TaskGroup() as group:
            for engine in self.engines:
                group.create_task(engine.watch(), name=f"engine-watch-{engine.client.url}")
            group.create_task(self._report_first_up(), name="engine-first-up")
            if any(engine.process is not None for engine in self.engines):
                group.create_task(self._watch_memory(), name="engine-memory")

    async def stop(self, *, is_immediate: bool = False) -> None:
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        for engine in self.engines:
            await engine.client.close()
        patience = IMMEDIATE_STOP_SECONDS if is_immediate else STOP_SECONDS
        processes = [engine.process for engine in self.engines if engine.process is not None]
        await asyncio.gather(*(process.stop(patience) for process in processes))
        for engine in self.engines:
            if len(self.engines) > 1 and engine.client.folders is not None:
                with contextlib.suppress(OSError):  # the folder of this one's temporary files, which it has emptied
                    await asyncio.to_thread(engine.client.folders.temp.parent.rmdir)

    def reports(self) -> list[EngineReport]:
        taken = self.pool.prompts_by_url
        return [engine.report(self._bytes_of(engine), taken[engine.client.url]) for engine in self.engines]

    def problem(self) -> str:
        """Return the reason why no engine can be used as it must be; empty where one can."""
        up = [engine for engine in self.engines if engine.client in self.pool.clients_serving]
        faults = [engine.client.calls.answer_fault for engine in up]
        problems = faults if up else [engine.problem for engine in self.engines]
        return "" if up and not all(problems) else next(filter(None, problems), "")

    async def metrics_texts(self) -> dict[int, str]:
        """Return the metrics that the engines report themselves, by their index; without those that are not up."""
        up = [(index, engine) for index, engine in enumerate(self.engines) if engine.is_up]
        texts = await asyncio.gather(
            *(asyncio.wait_for(engine.client.calls.metrics_text(), METRICS_SECONDS) for _, engine in up),
            return_exceptions=True,  # one that does not answer
        )
        return {index: text for (index, _), text in zip(up, texts, strict=True) if isinstance(text, str)}

    # making

    def _foreign_engines(self, launch: EngineLaunch) -> list[WatchedEngine]:
        return [self._foreign_engine(url) for url in launch.urls]

    def _foreign_engine(self, url: str) -> WatchedEngine:
        client = EngineClient(
            url,
            on_fault=lambda reason: engine.on_fault(reason),
            on_completed=lambda: engine.on_completed(),
            on_stops_changed=lambda: engine.on_stops_changed(),
        )
        engine = WatchedEngine(client, None, lambda: self.pool, self._limits, self._prepare)
        return engine

    def _own_engines(self, launch: EngineLaunch) -> list[WatchedEngine]:
        environment = child_environment(launch.environment_names)
        gpus = [] if launch.is_cpu or "--cpu" in launch.arguments else find_gpus(environment)
        seen = assign_gpus(gpus, launch.num_engines)
        sandbox = launch.sandbox
        if sandbox.level != "off":
            num_processes = (sandbox.max_processes or 0) * len(seen)  # engines share a user, and its count
            memory = sandbox.max_memory_bytes or (None if gpus else self._memory.total_bytes())
            limits = sandbox.model_copy(update={"max_processes": num_processes, "max_memory_bytes": memory})
            launch = launch.model_copy(update={"sandbox": limits})
        return [self._own_engine(launch, environment, index, gpu, len(seen)) for index, gpu in enumerate(seen)]

    def _own_engine(
        self, launch: EngineLaunch, environment: dict[str, str], index: int, gpu: str | None, num_engines: int
    ) -> WatchedEngine:
        flags = processor_flags()
        place = index if num_engines > 1 else None
        temp_name = f"engine-{index}-{secrets.token_hex(3)}"  # another front may share the folder
        user = find_user(launch.sandbox.level, launch.sandbox.user)
        command = engine_command(launch, environment, flags, index=place, temp_name=temp_name, gpu=gpu, user=user)
        process = EngineProcess(
            command,
            lambda loss: self._lost(engine, loss),
            budget=RestartBudget(self._config.max_restarts, RESTART_WINDOW_SECONDS),
            memory=self._memory,
            token=self._token,
            find_culprit=lambda reason: engine.find_culprit(reason),
        )
        client = EngineClient(
            process.address,
            folders=command.folders,
            has_check=True,
            is_supervised=True,
            heartbeat_seconds=min(HEARTBEAT_SECONDS, self._config.silence_seconds / 4),
            on_fault=lambda reason: engine.on_fault(reason),
            on_completed=lambda: engine.on_completed(),
            on_stops_changed=lambda: engine.on_stops_changed(),
        )
        engine = WatchedEngine(
            client,
            process,
            lambda: self.pool,
            self._limits,
            self._prepare,
            grace_seconds=self._config.cancel_grace_seconds,
            crashes=CrashStreak(self._config.max_restarts),
            runs_at_once=launch.runs_at_once,
        )
        return engine

    def _write_token(self) -> None:
        """Leave the token of this start where the operator finds it, for ComfyUI's clients."""
        if self._private_directory is not None:
            path = self._private_directory / TOKEN_FILE
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.unlink(missing_ok=True)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(self._token.get_secret_value())
            log.info("engine port requires token", token_file=str(path))

    # watching

    def _lost(self, engine: WatchedEngine, loss: Loss) -> None:
        is_in_doubt = engine.lost(loss)
        if all(other.state is EngineState.FAILED for other in self.engines):
            self._on_all_failed()
        elif engine.state is EngineState.FAILED:
            self._on_failed(engine.client)
        elif loss.reason is LossReason.DEVICE_LOST or is_in_doubt:
            self._on_device_lost(engine.client)

    async def _report_first_up(self) -> None:
        waiting = {asyncio.ensure_future(engine.wait_until_up()) for engine in self.engines}
        _, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for other in rest:
            other.cancel()
        self.has_been_up.set()
        await self._on_first_up()

    async def _watch_memory(self) -> None:
        while True:
            await asyncio.sleep(MEMORY_LOOK_SECONDS)
            name = self._too_large()
            if name is not None and self._end_beside is not None and await self._end_beside():
                continue
            for engine in self._with_memory():
                if engine.client.url == name:
                    log.info("engine over memory limit", url=name)
                    await engine.recycle(self._is_over_limit)

    def _with_memory(self) -> list[WatchedEngine]:
        """Return the engines whose memory counts, the one beside these among them."""
        beside = self._find_beside()
        return [*self.engines, *([] if beside is None else [beside])]

    def _too_large(self) -> str | None:
        now = time.monotonic()
        uses = [
            MemoryUse(
                name=engine.client.url,
                rss_bytes=self._bytes_of(engine) or 0,
                num_prompts=engine.client.runs.num_sent,
                age_seconds=now - max(engine.process.answering_since, engine.freed_at),
                num_recycled=engine.num_recycled + engine.num_freed,
            )
            for engine in self._with_memory()
            if engine.process is not None and engine.process.is_answering and not engine.is_held
        ]
        return engine_to_recycle(uses, self._front_bytes(), self._limit_bytes(), is_below_floor=self._is_below_floor())

    def _is_over_limit(self) -> bool:
        engines_bytes = sum(self._bytes_of(engine) or 0 for engine in self._with_memory())
        total = self._front_bytes() + engines_bytes
        return is_over_limit(total, self._limit_bytes(), is_below_floor=self._is_below_floor())

    def _limit_bytes(self) -> int | None:
        return soft_limit_bytes(self._config.soft_limit_bytes, self._memory.total_bytes())

    def _is_below_floor(self) -> bool:
        left = self._memory.available_bytes()
        return left is not None and left < self._min_free_bytes

    def _front_bytes(self) -> int:
        return self._memory.process_bytes(os.getpid()) or 0

    def _bytes_of(self, engine: WatchedEngine) -> int | None:
        pid = None if engine.process is None else engine.process.pid
        return None if pid is None else self._memory.process_bytes(pid)


def _log_failed_start(task: asyncio.Task[None]) -> None:
    """Log an engine that failed to start while another one served already; `/health` shows it as failed."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("engine did not start", reason=str(error))
