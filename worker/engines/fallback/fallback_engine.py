"""FallbackEngine: the ComfyUI beside our engine: started when a job needs it, supervised, ended when idle."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.fallback.command import FallbackLaunch, fallback_command
from darkroom.worker.engines.fallback.model_paths import model_paths
from darkroom.worker.engines.fallback.sharing import DeviceUse, device_use, may_stay
from darkroom.worker.engines.fallback.uses import FallbackUses
from darkroom.worker.engines.heartbeat import HeartbeatLimits
from darkroom.worker.engines.loss import CrashStreak, Loss, RestartBudget
from darkroom.worker.engines.pool import GIVE_UP_SECONDS, EnginePool
from darkroom.worker.engines.supervisor import EngineProcess
from darkroom.worker.engines.watch import EngineReport, EngineState, WatchedEngine
from darkroom.worker.errors import EngineStartFailed, EngineUnreachable
from darkroom.worker.observe.memory import MachineMemory
from darkroom.worker.settings.engines import SupervisionConfig

RESTART_WINDOW_SECONDS = 600.0

log = structlog.get_logger("engines")


@dataclass(slots=True)
class _Started:
    """A fallback that was started, or connected to, with the task that watches it."""

    client: EngineClient
    process: EngineProcess | None
    pool: EnginePool
    watched: WatchedEngine
    watching: asyncio.Task[None]

    @property
    def is_up(self) -> bool:
        return self.watched.is_up


class FallbackEngine:
    """The fallback. `engine()` holds it for a job; without one for `idle_seconds` its process is ended.

    `find_folders` returns the folders of our engine's models by kind, which the fallback reads, too; `bytes_of` the
    memory of the process of an engine of ours.
    """

    def __init__(
        self,
        launch: FallbackLaunch,
        config: SupervisionConfig,
        find_folders: Callable[[], Awaitable[Mapping[str, list[str]]]],
        bytes_of: Callable[[EngineClient], int | None] = lambda client: None,
        memory: MachineMemory | None = None,
    ) -> None:
        self.uses = FallbackUses()
        self._launch = launch
        self._config = config
        self._find_folders = find_folders
        self._bytes_of_own = bytes_of
        self._memory = memory or MachineMemory()
        self._started: _Started | None = None
        self._changing = asyncio.Lock()
        self._num_users = 0
        self._idle: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._nodes: Mapping[str, Any] | None = None
        self._holds_models = False
        self._needed: dict[str, int] = {}  # by address: the most that an engine was measured to hold, in bytes

    @property
    def takes_failures(self) -> bool:
        """True if jobs that failed on our engine are run once more here."""
        return self._launch.takes_failures

    @property
    def client(self) -> EngineClient | None:
        """The fallback's client while it is up, None else."""
        return self._started.client if self._started is not None and self._started.is_up else None

    def report(self) -> EngineReport | None:
        """Return the state of the fallback, None while it is not started."""
        started = self._started
        if started is None:
            return None
        pid = None if started.process is None else started.process.pid
        memory_bytes = None if pid is None else self._memory.process_bytes(pid)
        return started.watched.report(memory_bytes, started.pool.prompts_by_url[started.client.url])

    @contextlib.asynccontextmanager
    async def engine(self) -> AsyncIterator[EngineClient]:
        """Hold the fallback, started if it is not, until the block is left. Raises EngineUnreachable."""
        self._num_users += 1
        self._cancel_idle()
        try:
            started = await self._running()
            await started.pool.any_up()
            yield started.client
        finally:
            self._num_users -= 1
            self._begin_idle()

    async def nodes(self) -> Mapping[str, Any] | None:
        """Return the fallback's node classes as they were read last; None before its first start."""
        if self._nodes is None and self._launch.target.is_started_here:
            self._nodes = await asyncio.to_thread(_read_nodes, self._launch.nodes_file)
        return self._nodes

    async def stop(self) -> None:
        """End the fallback's process and all connections."""
        self._cancel_idle()
        async with self._changing:
            await self._stop()

    # one device, two engines

    async def make_room_for_fallback(self, client: EngineClient, own: EngineClient) -> None:
        """Have our engine release its memory before a job of the fallback, unless both fit."""
        await self._make_room(client, own, "engine memory released for the fallback")
        self._holds_models = True

    async def make_room_for_own(self, own: EngineClient) -> None:
        """Have the fallback release its memory before a job of our engine, unless both fit."""
        client = self.client
        if client is None or not self._holds_models:
            return
        self._holds_models = not await self._make_room(own, client, "fallback memory released")

    async def measure(self, client: EngineClient) -> None:
        """Note what an engine, ours or the fallback, holds after a job."""
        if self._started is None:  # then nothing is to be shared with
            return
        used = await self._use(client)
        if used is not None:
            self._needed[client.url] = max(used.held_bytes, self._needed.get(client.url, 0))

    async def _make_room(self, coming: EngineClient, other: EngineClient, event: str) -> bool:
        """Free the memory of `other` unless it may stay while `coming` runs. Return True if it was freed."""
        used = await self._use(other)
        if used is not None and may_stay(used.held_bytes, self._needed.get(coming.url), used.total_bytes):
            return False
        log.info(event, held_bytes=None if used is None else used.held_bytes)
        await other.calls.free()
        return True

    async def _use(self, client: EngineClient) -> DeviceUse | None:
        process_bytes = self._bytes() if client is self.client else self._bytes_of_own(client)
        try:
            return device_use(await client.calls.system_stats(), process_bytes)
        except EngineUnreachable:
            return None

    def _bytes(self) -> int | None:
        pid = None if self._started is None or self._started.process is None else self._started.process.pid
        return None if pid is None else self._memory.process_bytes(pid)

    # start and end

    async def _running(self) -> _Started:
        """Return the fallback, started if it is not. Raises EngineUnreachable with the reason."""
        async with self._changing:
            if self._started is not None and self._started.watched.state is EngineState.FAILED:
                await self._stop()
            if self._started is None:
                try:
                    loop = asyncio.get_running_loop()  # its tasks and log are no job's
                    self._started = await loop.create_task(self._start(), context=contextvars.Context())
                except (EngineStartFailed, OSError) as error:
                    log.error("fallback did not start", reason=str(error))
                    raise EngineUnreachable(f"The fallback engine does not start: {error}") from None
                await self._keep_nodes(self._started.client)
            return self._started

    async def _start(self) -> _Started:
        launch = self._launch
        if not launch.target.is_started_here:
            client = self._client(launch.target.url)
            return await self._watched(client, None)
        text = model_paths(await self._find_folders())
        await asyncio.to_thread(_write, launch.paths_file, text.encode())
        process = EngineProcess(
            fallback_command(launch),
            lambda loss: self._lost(loss),
            budget=RestartBudget(self._config.max_restarts, RESTART_WINDOW_SECONDS),
            memory=self._memory,
            find_culprit=lambda reason: self._started.watched.find_culprit(reason) if self._started else None,
        )
        await process.prepare()
        log.info("fallback starts", program=launch.target.program[0])
        try:
            await process.start()
        except BaseException:
            await process.stop(0.5)
            raise
        return await self._watched(self._client(process), process)

    def _client(self, source: EngineProcess | str) -> EngineClient:
        is_process = isinstance(source, EngineProcess)
        return EngineClient(
            source.address if isinstance(source, EngineProcess) else source,
            folders=self._launch.folders if is_process else None,
            is_supervised=is_process,
            heartbeat_seconds=self._config.silence_seconds / 4,
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

    async def _keep_nodes(self, client: EngineClient) -> None:
        """Keep the node classes of a fallback that has just come up for decisions while it is down."""
        assert self._started is not None
        try:
            await self._started.pool.any_up()
            self._nodes = await client.object_info()
        except EngineUnreachable as error:
            log.warning("fallback nodes unknown", reason=error.message)
            return
        content = json.dumps(self._nodes).encode()
        with contextlib.suppress(OSError):
            await asyncio.to_thread(_write, self._launch.nodes_file, content)

    def _lost(self, loss: Loss) -> None:
        self._holds_models = False
        if self._started is not None:
            self._started.watched.lost(loss)

    async def _stop(self) -> None:
        started, self._started, self._holds_models = self._started, None, False
        if started is None:
            return
        started.watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await started.watching
        await started.client.close()
        if started.process is not None:
            await started.process.stop()

    def _begin_idle(self) -> None:
        if self._num_users == 0 and self._started is not None and self._started.process is not None:
            self._idle = asyncio.get_running_loop().call_later(self._launch.idle_seconds, self._end_idle)

    def _cancel_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _end_idle(self) -> None:
        self._ending = asyncio.get_running_loop().create_task(self._stop_idle(), name="fallback-end")

    async def _stop_idle(self) -> None:
        async with self._changing:
            if self._num_users == 0:
                log.info("fallback idle, ended")
                await self._stop()


async def _nothing(_client: EngineClient) -> None: ...


def _read_nodes(path: Path) -> Mapping[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _write(path: Path, content: bytes) -> None:
    """Write a file in one step, for this user alone."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_suffix(".part")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    partial.replace(path)
