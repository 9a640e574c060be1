"""WatchedEngine: supervision of one engine, ours or foreign.

Ours is replaced when its heartbeat shows that it hangs, or when a cancelled prompt goes on for too long. A foreign one
is only polled, and is busy until such a prompt is gone. In both cases the pool is updated.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import structlog

from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.heartbeat import Heartbeat, HeartbeatLimits, find_loss
from darkroom.worker.engines.loss import CrashStreak, Loss, LossReason
from darkroom.worker.engines.pool import EnginePool
from darkroom.worker.engines.stopping import StopRequest, stop_limit_seconds
from darkroom.worker.engines.supervisor import EngineProcess, ProcessState
from darkroom.worker.errors import EngineUnreachable

LOOK_SECONDS = 1.0
LOOK_SECONDS_FOREIGN = 2.0
LOOK_DOWN_SECONDS = 0.1
PROBE_SECONDS = 10.0  # between looks at a foreign engine's other routes: its queue may be long
DEFAULT_GRACE_SECONDS = 15.0
DEFAULT_CRASHES = 10
FREE_LOOKS = 20  # in these pauses, before giving memory back has not been enough

log = structlog.get_logger("engines")


class EngineState(StrEnum):
    STARTING = "starting"
    UP = "up"
    DRAINING = "draining"  # takes no further prompt, to be replaced when it has none left
    STOPPING = "stopping"  # takes no further prompt until a cancelled one has stopped
    UNFIT = "unfit"  # up, and takes no prompt: it has not proved itself, and others serve
    RESTARTING = "restarting"
    DOWN = "down"  # not ours, and it does not answer
    FAILED = "failed"  # ours, and it does not come back


@dataclass(frozen=True, slots=True)
class EngineReport:
    """State of one engine for `/health` and `/metrics`. None: not known."""

    url: str
    state: EngineState
    num_prompts: int
    pid: int | None
    heartbeat_age_seconds: float | None
    running: str | None
    node_id: str | None
    quiet_seconds: float | None
    memory_bytes: int | None
    restarts: Mapping[LossReason, int]
    last_loss: Loss | None
    is_stuck: bool


@dataclass(slots=True)
class _Pulse:
    """Results of the last heartbeats. Times are monotonic seconds."""

    last: Heartbeat = field(default_factory=Heartbeat)
    at: float | None = None
    num_missed: int = 0


class WatchedEngine:
    """Supervision of one engine. `process` None: the engine is not ours. `watch()` is its task and never ends.

    `prepare` is awaited when the engine has come up anew, before it takes prompts. Client and process are created with
    this object's `on_fault`, `on_completed`, `on_stops_changed` and `find_culprit` as callbacks.
    """

    def __init__(
        self,
        client: EngineClient,
        process: EngineProcess | None,
        pool: Callable[[], EnginePool],
        limits: HeartbeatLimits,
        prepare: Callable[[EngineClient], Awaitable[None]],
        *,
        grace_seconds: float = DEFAULT_GRACE_SECONDS,
        crashes: CrashStreak | None = None,
        runs_at_once: int = 1,
    ) -> None:
        self.client = client
        self.process = process
        self.num_recycled = 0
        self.num_freed = 0  # how often giving memory back was enough
        self.freed_at = 0.0  # the last time, monotonic
        self._probed_at = 0.0  # monotonic
        self.problem = ""  # why it could not be used when it was asked last
        self._pool = pool
        self._limits = limits
        self._prepare = prepare
        self._pulse = _Pulse()
        self._has_been_up = asyncio.Event()
        self._is_draining = False
        self._grace_seconds = grace_seconds
        self._runs_at_once = runs_at_once
        self._crashes = crashes or CrashStreak(DEFAULT_CRASHES)
        self._stop_timers: dict[StopRequest, asyncio.TimerHandle] = {}

    @property
    def state(self) -> EngineState:
        if self.process is not None and self.process.state is ProcessState.FAILED:
            return EngineState.FAILED
        if self.is_up and not self._pool().is_fit(self.client) and self._pool().clients_serving:
            return EngineState.UNFIT
        if self.is_up:
            if self._is_draining:
                return EngineState.DRAINING
            return EngineState.STOPPING if self.client.stops.running else EngineState.UP
        if not self._has_been_up.is_set():
            return EngineState.STARTING
        return EngineState.DOWN if self.process is None else EngineState.RESTARTING

    @property
    def is_up(self) -> bool:
        return self.client in self._pool().clients_up

    @property
    def is_held(self) -> bool:
        """True while the front holds the engine for itself."""
        return self._pool().is_held(self.client)

    async def wait_until_up(self) -> None:
        """Wait until the engine is up for the first time."""
        await self._has_been_up.wait()

    async def watch(self) -> None:
        while True:
            if self.process is not None:
                await self.process.wait_until_answering()
            is_up = await (self._poll_foreign() if self.process is None else self._poll())
            if is_up != self.is_up:
                log.info("engine is up" if is_up else "engine is down", url=self.client.url)
                self.client.facts.forget_object_info()
                self.client.files.uploaded.clear()  # the next server may be another one, with another disk
                if is_up and not self.client.has_check:
                    await self.client.prompts.learn_id_form()
                if is_up and self._has_been_up.is_set():
                    is_up = await self._is_prepared()
            self._pool().set_up(self.client, is_up)
            if is_up:
                self._has_been_up.set()
            pause = LOOK_SECONDS_FOREIGN if self.process is None else LOOK_SECONDS
            await asyncio.sleep(pause if is_up or self.client.calls.answer_fault else LOOK_DOWN_SECONDS)

    async def _is_prepared(self) -> bool:
        """Prepare the engine; return True if it is still up afterwards.

        An engine that hangs meanwhile is replaced, as during a job.
        """
        num_restarts = None if self.process is None else self.process.num_restarts
        preparing = asyncio.ensure_future(self._prepare(self.client))
        try:
            while not preparing.done():
                await asyncio.wait({preparing}, timeout=LOOK_SECONDS)
                if self.process is not None and self.process.is_answering:
                    await self._poll()
        finally:
            preparing.cancel()
        await preparing
        return self.process is None or (self.process.is_answering and self.process.num_restarts == num_restarts)

    def lost(self, loss: Loss) -> bool:
        """Report the end of the engine's process to the pool and to every run.

        Returns True when it has ended under so many jobs that the engine itself is in doubt.
        """
        self._pulse = _Pulse()
        self._pool().set_up(self.client, False)
        self.client.mark_lost(loss)
        return self._crashes.add(loss)

    async def recycle(self, is_still_needed: Callable[[], bool] = lambda: True) -> None:
        """Replace our engine between jobs: it gets no further prompt, ends those that it has, and starts anew.

        It first releases all memory that it can do without, and stays if `is_still_needed` then returns False. Returns
        when an engine is up. Nothing is lost: the front's waiting jobs go on waiting.
        """
        assert self.process is not None
        self._is_draining = True
        num_restarts = self.process.num_restarts
        try:
            async with self._pool().hold(self.client):
                if self.process.num_restarts != num_restarts:  # it has been replaced already, for another reason
                    return
                if await self._is_enough_given_back(is_still_needed):
                    return
                self.num_recycled += 1
                self.process.replace(LossReason.RECYCLED)
                while self.process.num_restarts == num_restarts or self.state is EngineState.RESTARTING:
                    if self.process.state is ProcessState.STOPPED:
                        return
                    await asyncio.sleep(LOOK_DOWN_SECONDS)  # its end and its return have no event
        finally:
            self._is_draining = False

    async def _is_enough_given_back(self, is_still_needed: Callable[[], bool]) -> bool:
        await self.client.calls.free()
        for _ in range(FREE_LOOKS):
            if not is_still_needed():
                self.num_freed += 1
                self.freed_at = time.monotonic()
                log.info("engine memory released, not replaced", url=self.client.url)
                return True
            await asyncio.sleep(LOOK_DOWN_SECONDS)
        return False

    def report(self, memory_bytes: int | None, num_prompts: int) -> EngineReport:
        pulse, process = self._pulse, self.process
        stop = next(iter(self.client.stops.running), None) if process is None else None
        stopping_seconds = None if stop is None else round(time.monotonic() - stop.asked_at, 3)
        quiet_seconds = pulse.last.quiet_seconds if stop is None else stopping_seconds
        return EngineReport(
            url=self.client.url,
            state=self.state,
            num_prompts=num_prompts,
            pid=None if process is None else process.pid,
            heartbeat_age_seconds=None if pulse.at is None else round(time.monotonic() - pulse.at, 3),
            running=pulse.last.running if stop is None else stop.prompt_id,
            node_id=pulse.last.node_id,
            quiet_seconds=quiet_seconds,
            memory_bytes=memory_bytes,
            restarts=Counter() if process is None else Counter(process.restarts),
            last_loss=None if process is None else process.last_loss,
            is_stuck=quiet_seconds is not None and quiet_seconds > self._limits.stall_seconds,
        )

    async def _poll(self) -> bool:
        """Return True if our engine can take prompts; replace it if it hangs."""
        pulse, client = self._pulse, self.client
        if self.process is not None:
            self.process.look_at_memory()
        try:
            pulse.last = await client.heartbeat()
            pulse.at, pulse.num_missed = time.monotonic(), 0
        except EngineUnreachable as error:
            pulse.num_missed += 1
            self.problem = error.message
        assert self.process is not None
        if pulse is not self._pulse or not self.process.is_answering:  # it was lost meanwhile
            return False
        loss = find_loss(
            pulse.last,
            self._limits,
            silent_seconds=time.monotonic() - (pulse.at or self.process.answering_since),
            num_missed=pulse.num_missed,
        )
        if loss is not None:
            log.error("engine hung", reason=loss.value, prompt_id=pulse.last.running, node_id=pulse.last.node_id)
            self.process.replace(loss)
            return False
        if pulse.num_missed or not pulse.last.is_built:
            return self.is_up
        return self.is_up or await self._has_nodes()

    async def _poll_foreign(self) -> bool:
        try:
            await self.client.calls.system_stats()
            if not self.is_up or self.client.calls.answer_fault or time.monotonic() - self._probed_at >= PROBE_SECONDS:
                await self.client.prompts.probe()
                self._probed_at = time.monotonic()
        except EngineUnreachable as error:
            self.problem = error.message
            return False
        self._pulse.at = time.monotonic()
        return await self._has_nodes()

    async def _has_nodes(self) -> bool:
        """Return True once the engine lists its nodes: it answers before that, and does not count as up."""
        try:
            await self.client.object_info()
        except EngineUnreachable as error:
            self.problem = error.message
            return False
        self.problem = ""
        return True

    def find_culprit(self, reason: LossReason) -> str | None:
        """Return the prompt that caused a loss, None if there is none."""
        return self.client.runs.find_culprit(reason, self._pulse.last.running)

    def on_completed(self) -> None:
        """End the streak of crashes: a prompt has succeeded."""
        self._crashes.end()

    def on_stops_changed(self) -> None:
        """Update the pool and the grace periods: a prompt was asked to stop, or has stopped."""
        running = self.client.stops.running
        self._pool().set_stopping(self.client, bool(running))
        for request in [request for request in self._stop_timers if request not in running]:
            self._stop_timers.pop(request).cancel()
        for request in running if self.process is not None else ():
            if request not in self._stop_timers:
                limit = stop_limit_seconds(self._grace_seconds, request.longest_gap_seconds)
                timer = asyncio.get_running_loop().call_later(limit, self._end_of_grace, request, limit)
                self._stop_timers[request] = timer

    def _end_of_grace(self, request: StopRequest, limit_seconds: float) -> None:
        """Replace our engine, whose prompt has not stopped in time. What waits there is sent to the next one.

        Of several prompts it is only replaced while the one to stop computes: else that one waits for its turn.
        """
        assert self.process is not None
        prompt_id, node_id = request.prompt_id, self._pulse.last.node_id
        if self._runs_at_once > 1 and self._pulse.last.running not in (None, prompt_id):
            timer = asyncio.get_running_loop().call_later(limit_seconds, self._end_of_grace, request, limit_seconds)
            self._stop_timers[request] = timer
            return
        log.error("cancellation ignored", prompt_id=prompt_id, node_id=node_id, limit_seconds=round(limit_seconds, 3))
        self._pool().set_up(self.client, False)
        self.process.replace(LossReason.STOP_IGNORED)

    def on_fault(self, reason: LossReason) -> None:
        """Replace an engine of ours that cannot be used any more; a foreign one can only be reported."""
        if self.process is not None:
            self.process.replace(reason)
            self._pool().set_up(self.client, False)
