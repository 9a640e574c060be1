"""FallbackEngine: the ComfyUI beside our engine: started when a job needs it, supervised, ended when idle."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.client.presence import HEARTBEAT_SECONDS
from darkroom.worker.engines.fallback.command import FallbackLaunch, fallback_command
from darkroom.worker.engines.fallback.device_sharing import DeviceSharing
from darkroom.worker.engines.fallback.known_nodes import KnownNodes
from darkroom.worker.engines.fallback.model_paths import model_paths, write_shared
from darkroom.worker.engines.fallback.uses import FallbackUses
from darkroom.worker.engines.heartbeat import HeartbeatLimits
from darkroom.worker.engines.loss import CrashStreak, Loss, RestartBudget
from darkroom.worker.engines.pool import GIVE_UP_SECONDS, EnginePool
from darkroom.worker.engines.slots import Order
from darkroom.worker.engines.supervisor import EngineProcess
from darkroom.worker.engines.watch import EngineReport, EngineState, WatchedEngine
from darkroom.worker.errors import EngineStartFailed, EngineUnreachable
from darkroom.worker.observe.memory import MachineMemory
from darkroom.worker.settings.engines import SupervisionConfig

RESTART_WINDOW_SECONDS = 600.0
LOOK_SECONDS = 0.05
STOP_AT_ONCE_SECONDS = 0.5

log = structlog.get_logger("engines")


@dataclass(slots=True)
class _Started:
    """A fallback that was started, or connected to, with the task that watches it."""

    client: EngineClient
    process: EngineProcess | None
    pool: EnginePool
    watched: WatchedEngine
    watching: asyncio.Task[None]


class FallbackEngine:
    """The fallback. `engine()` holds it; without a holder for the launch's `idle_seconds` its process is ended.

    `find_folders` returns the folders of our engine's models by kind, which the fallback reads, too. `neighbour` is the
    engine of ours on the fallback's device, None where each has its own.
    """

    def __init__(
        self,
        launch: FallbackLaunch,
        config: SupervisionConfig,
        find_folders: Callable[[], Awaitable[Mapping[str, list[str]]]],
        memory: MachineMemory | None = None,
        neighbour: WatchedEngine | None = None,
    ) -> None:
        self.sharing = None if neighbour is None else DeviceSharing(neighbour, self._bytes_of)
        """Memory of the device that an engine of ours has, too; None: the fallback's device is its own."""

        self.uses = FallbackUses()
        self.nodes = KnownNodes(launch.nodes_file)
        self.launch = launch
        self.num_starts = 0
        self._config = config
        self._find_folders = find_folders
        self._memory = memory or MachineMemory()
        self._started: _Started | None = None
        self._starting: asyncio.Task[_Started] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._num_users = 0
        self._idle: asyncio.TimerHandle | None = None

    @property
    def watched(self) -> WatchedEngine | None:
        """The supervision of the fallback, None while it is not started."""
        return None if self._started is None else self._started.watched

    @property
    def client(self) -> EngineClient | None:
        """The fallback's client while it is up, None else."""
        watched = self.watched
        return watched.client if watched is not None and watched.is_up else None

    @property
    def process_bytes(self) -> int | None:
        """Memory of the fallback's process; None while there is none, or where it was not started here."""
        return self._memory_of(self.watched)

    def report(self) -> EngineReport | None:
        """Return the state of the fallback, None while it is not started."""
        started = self._started
        if started is None:
            return None
        return started.watched.report(self.process_bytes, started.pool.prompts_by_url[started.client.url])

    @contextlib.asynccontextmanager
    async def engine(self) -> AsyncIterator[EngineClient]:
        """Hold the fallback, started if it is not, until the block is left. Raises EngineUnreachable."""
        self._num_users += 1
        self._cancel_idle()
        try:
            started = await self._running()
            await _until_up(started)
            yield started.client
        finally:
            self._num_users -= 1
            self._begin_idle()

    @contextlib.asynccontextmanager
    async def slot(self, order: Order) -> AsyncIterator[EngineClient]:
        """Hold the fallback for a prompt of its own, once a cancelled one there has stopped. Raises EngineUnreachable.

        Several wait by `order`.
        """
        async with self.engine() as client:
            assert self._started is not None
            async with self._started.pool.engine(order):
                yield client

    async def idle_client(self) -> EngineClient | None:
        """Return the fallback's client once it has no prompt, not even a cancelled one; None while it is not up."""
        started = self._started
        if started is None or not started.watched.is_up:
            return None
        async with started.pool.hold(started.client):
            return self.client

    async def stop(self) -> None:
        """End the fallback's process and all connections, also while it starts."""
        self._cancel_idle()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait({self._starting})
        if self._ending is not None:
            await asyncio.wait({self._ending})
        await self._stop()

    async def stop_if_idle(self) -> bool:
        """End the fallback's process if nobody holds it. Return True if there was one."""
        if self._num_users or self._started is None or self._started.process is None:
            return False
        log.info("fallback ended", reason="idle")
        await self._stop()
        return True

    async def _running(self) -> _Started:
        """Return the fallback, started if it is not. Raises EngineUnreachable with the reason."""
        if self._started is not None and self._started.watched.state is EngineState.FAILED:
            await self._stop()
        if self._starting is None or (self._starting.done() and self._started is None):
            # In a context of its own: its tasks and log are no job's.
            self._starting = asyncio.get_running_loop().create_task(self._start(), context=contextvars.Context())
            self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            return await asyncio.shield(self._starting)
        except (EngineStartFailed, OSError) as error:
            log.error("fallback did not start", reason=str(error))
            raise EngineUnreachable(f"The fallback engine does not start: {error}") from None

    def _bytes_of(self, client: EngineClient) -> int | None:
        known = [self.watched, None if self.sharing is None else self.sharing.watched]
        return self._memory_of(next((one for one in known if one is not None and one.client is client), None))

    def _memory_of(self, watched: WatchedEngine | None) -> int | None:
        process = None if watched is None else watched.process
        return None if process is None or process.pid is None else self._memory.process_bytes(process.pid)

    # start and end

    async def _start(self) -> _Started:
        if self._ending is not None:
            await asyncio.wait({self._ending})
        launch = self.launch
        self.num_starts += 1
        if not launch.target.is_started_here:
            self._started = await self._watched(self._client(None), None)
        else:
            text = model_paths(await self._find_folders())
            await asyncio.to_thread(write_shared, launch.paths_file, text)
            process = EngineProcess(
                fallback_command(launch),
                self._lost,
                budget=RestartBudget(self._config.max_restarts, RESTART_WINDOW_SECONDS),
                memory=self._memory,
                find_culprit=lambda reason: self._started.watched.find_culprit(reason) if self._started else None,
            )
            await process.prepare()
            log.info("fallback starts", program=launch.target.program[0])
            try:
                await process.start()
            except BaseException:
                await process.stop(STOP_AT_ONCE_SECONDS)
                raise
            self._started = await self._watched(self._client(process), process)
        try:
            await _until_up(self._started)
            await self.nodes.keep(await self._started.client.object_info())
        except EngineUnreachable as error:
            log.warning("fallback nodes unknown", reason=error.message)
        self._begin_idle()  # whoever asked for it may have left
        return self._started

    def _client(self, process: EngineProcess | None) -> EngineClient:
        return EngineClient(
            self.launch.target.url if process is None else process.address,
            folders=None if process is None else self.launch.folders,
            is_supervised=process is not None,
            heartbeat_seconds=min(HEARTBEAT_SECONDS, self._config.silence_seconds / 4),
            on_fault=lambda reason: self._started.watched.on_fault(reason) if self._started else None,
            on_completed=lambda: self._started.watched.on_completed() if self._started else None,
            on_stops_changed=lambda: self._started.watched.on_stops_changed() if self._started else None,
        )

    async def _watched(self, client: EngineClient, process: EngineProcess | None) -> _Started:
        pool = EnginePool([client], 1, None if process is not None else GIVE_UP_SECONDS)
        watched = WatchedEngine(
            client,
            process,
            lambda: pool,
            HeartbeatLimits(self._config.stall_seconds, self._config.silence_seconds),
            _nothing,
            grace_seconds=self._config.cancel_grace_seconds,
            crashes=CrashStreak(self._config.max_restarts),
        )
        pool.set_up(client, False)
        await client.start()
        return _Started(client, process, pool, watched, asyncio.create_task(watched.watch(), name="fallback-watch"))

    def _lost(self, loss: Loss) -> None:
        if self._started is not None:
            self._started.watched.lost(loss)

    async def _stop(self) -> None:
        started, self._started, self._starting = self._started, None, None
        if started is None:
            return
        started.pool.give_up()
        started.pool.set_up(started.client, False)  # whoever waits until it is idle goes on
        self._ending = asyncio.create_task(_end(started), name="fallback-end")
        await asyncio.shield(self._ending)

    def _begin_idle(self) -> None:
        self._cancel_idle()
        if self._num_users == 0 and self._started is not None and self._started.process is not None:
            loop, no_job = asyncio.get_running_loop(), contextvars.Context()
            self._idle = loop.call_later(self.launch.idle_seconds, self._end_idle, context=no_job)

    def _cancel_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _end_idle(self) -> None:
        self._idle_end = asyncio.get_running_loop().create_task(self.stop_if_idle(), name="fallback-idle")


async def _until_up(started: _Started) -> None:
    """Wait until the fallback takes prompts. Raises EngineUnreachable when it does not come back."""
    if started.process is None:
        await started.pool.any_up()
        return
    while not started.watched.is_up:
        if started.watched.state is EngineState.FAILED:
            raise EngineUnreachable("The fallback engine does not come back; the log has the reason")
        await asyncio.sleep(LOOK_SECONDS)


async def _end(started: _Started) -> None:
    started.watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await started.watching
    await started.client.close()
    if started.process is not None:
        await started.process.stop()


async def _nothing(_client: EngineClient) -> None: ...
