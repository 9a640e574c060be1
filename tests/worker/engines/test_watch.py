"""An engine of ours that hangs, falls silent, breaks or grows, as a real process that plays its part."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.command import EngineCommand
from darkroom.worker.engines.heartbeat import HeartbeatLimits
from darkroom.worker.engines.loss import Loss, LossReason, RestartBudget
from darkroom.worker.engines.pool import EnginePool
from darkroom.worker.engines.supervisor import EngineProcess, ProcessState
from darkroom.worker.engines.watch import EngineState, WatchedEngine
from tests.worker.engines.child import IDLE
from tests.worker.running_front import until

CHILD = Path(__file__).with_name("child.py")
LIMITS = HeartbeatLimits(stall_seconds=5.0, silence_seconds=60.0)
SOON_SILENT = replace(LIMITS, silence_seconds=1.0)


@dataclass
class Watched:
    engine: WatchedEngine
    process: EngineProcess
    pool: EnginePool
    folder: Path
    losses: list[LossReason] = field(default_factory=list)

    def beat(self, running: str | None = None, quiet_seconds: float | None = None) -> None:
        (self.folder / "beat.new").write_text(
            json.dumps({**IDLE, "running": running, "seconds_since_event": quiet_seconds})
        )
        (self.folder / "beat.new").replace(self.folder / "beat.json")

    async def until(self, is_so: Callable[[], bool]) -> None:
        async def asked() -> bool:
            return is_so()

        await until(asked)

    async def until_lost_for(self, reason: LossReason) -> None:
        await self.until(lambda: self.losses == [reason])
        self.beat()
        (self.folder / "silent").unlink(missing_ok=True)
        await self.until(lambda: self.engine.state is EngineState.UP)


async def nothing_to_prepare(_client: EngineClient) -> None: ...


@asynccontextmanager
async def watched_engine(
    folder: Path,
    max_restarts: int = 5,
    prepare: Callable[[EngineClient], Awaitable[None]] = nothing_to_prepare,
    *,
    grace_seconds: float = 60.0,
    place_of_all: str | None = None,
    runs_at_once: int = 1,
    limits: HeartbeatLimits = LIMITS,
) -> AsyncIterator[Watched]:
    losses: list[LossReason] = []

    def lost(loss: Loss) -> None:
        losses.append(loss.reason)
        engine.lost(loss)

    command = EngineCommand((sys.executable, str(CHILD)), (), {}, folder)
    process = EngineProcess(
        command,
        lost,
        budget=RestartBudget(max_restarts, 60),
        find_culprit=lambda reason: engine.find_culprit(reason),
    )
    client = EngineClient(
        process.address,
        has_check=True,
        is_supervised=True,
        heartbeat_seconds=0.1,
        on_fault=lambda reason: engine.on_fault(reason),
        on_completed=lambda: engine.on_completed(),
        on_stops_changed=lambda: engine.on_stops_changed(),
    )
    pool = EnginePool([client], give_up_seconds=None)
    pool.set_up(client, False)
    if place_of_all is not None:
        there = {place_of_all: [[0, f"{name}-1", {}, {}, []] for name in ("stuck", "slow")]}
        queue = {"queue_running": [], "queue_pending": [], **there}
        (folder / "queue.json").write_text(json.dumps(queue))
    engine = WatchedEngine(
        client, process, lambda: pool, limits, prepare, grace_seconds=grace_seconds, runs_at_once=runs_at_once
    )
    await process.start()
    watching = asyncio.create_task(engine.watch())
    watched = Watched(engine, process, pool, folder, losses)
    try:
        await watched.until(lambda: engine.state is EngineState.UP)
        yield watched
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await client.close()
        await process.stop()


async def test_a_node_without_progress_gets_the_engine_replaced(tmp_path: Path) -> None:
    async with watched_engine(tmp_path) as watched:
        watched.beat("job-1", 4.0)
        await watched.until(lambda: watched.engine.report(None, 0).running == "job-1")
        assert watched.losses == []
        watched.beat("job-1", 6.0)
        await watched.until_lost_for(LossReason.HUNG)


async def test_a_server_that_answers_nothing_gets_replaced(tmp_path: Path) -> None:
    async with watched_engine(tmp_path, limits=SOON_SILENT) as watched:
        (tmp_path / "silent").touch()
        await watched.until_lost_for(LossReason.UNRESPONSIVE)


async def test_a_failed_device_gets_the_engine_replaced(tmp_path: Path) -> None:
    async with watched_engine(tmp_path) as watched:
        watched.engine.on_fault(LossReason.DEVICE_LOST)
        assert not watched.engine.is_up
        await watched.until_lost_for(LossReason.DEVICE_LOST)


async def test_an_engine_is_recycled_between_jobs_and_whoever_waits_gets_the_new_one(tmp_path: Path) -> None:
    async with watched_engine(tmp_path, max_restarts=0) as watched:
        before = watched.process.pid

        async def take_a_place() -> int | None:
            async with watched.pool.engine((0, 2)):
                return watched.process.pid

        async with watched.pool.engine((0, 1)):
            recycling = asyncio.create_task(watched.engine.recycle())
            await watched.until(lambda: watched.engine.state is EngineState.DRAINING)
            waiting = asyncio.create_task(take_a_place())
            await asyncio.sleep(0)
            assert watched.process.pid == before and not waiting.done() and watched.losses == []
        await recycling
        after = await waiting
        assert watched.losses == [LossReason.RECYCLED] and after not in (None, before)
        assert watched.engine.num_recycled == 1


async def test_an_engine_that_gives_enough_memory_back_is_not_replaced(tmp_path: Path) -> None:
    async with watched_engine(tmp_path) as watched:
        before = watched.process.pid
        await watched.engine.recycle(is_still_needed=lambda: not (tmp_path / "freed").exists())
        assert (tmp_path / "freed").read_text() == "/free"
        assert watched.process.pid == before and watched.losses == []
        assert (watched.engine.num_freed, watched.engine.num_recycled) == (1, 0)
        assert watched.engine.state is EngineState.UP


async def test_an_engine_that_dies_too_often_is_given_up(tmp_path: Path) -> None:
    async with watched_engine(tmp_path, max_restarts=1) as watched:
        for _ in range(2):
            pid = watched.process.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await watched.until(lambda pid=pid: watched.process.pid != pid)  # type: ignore[misc]
            await watched.until(lambda: watched.engine.state in (EngineState.UP, EngineState.FAILED))
        assert watched.engine.state is EngineState.FAILED and watched.process.num_restarts == 2


async def test_starts_that_come_to_nothing_count_too(tmp_path: Path) -> None:
    async with watched_engine(tmp_path, max_restarts=2) as watched:
        (tmp_path / "broken").touch()
        pid = watched.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await watched.until(lambda: watched.process.state is ProcessState.FAILED)
        assert watched.engine.report(None, 0).last_loss is not None


async def test_an_engine_that_ends_while_it_is_prepared_takes_no_prompt_before_it_has_been_prepared_again(
    tmp_path: Path,
) -> None:
    was_up: list[bool] = []

    async def prepare(_client: EngineClient) -> None:
        was_up.append(watched.engine.is_up)
        if len(was_up) == 1:
            assert watched.process.pid is not None
            os.kill(watched.process.pid, signal.SIGKILL)
            await watched.until(lambda: watched.process.num_restarts == 2)

    async with watched_engine(tmp_path, prepare=prepare) as watched:
        assert watched.process.pid is not None
        os.kill(watched.process.pid, signal.SIGKILL)
        await watched.until(lambda: len(was_up) == 2)
        await watched.until(lambda: watched.engine.state is EngineState.UP)
    assert was_up == [False, False]


async def test_an_engine_that_hangs_while_it_is_prepared_is_replaced(tmp_path: Path) -> None:
    async def prepare(_client: EngineClient) -> None:
        if watched.losses == [LossReason.CRASHED]:
            watched.beat("warm-up", 6.0)
            await watched.until(lambda: len(watched.losses) == 2)
            watched.beat()

    async with watched_engine(tmp_path, prepare=prepare) as watched:
        assert watched.process.pid is not None
        os.kill(watched.process.pid, signal.SIGKILL)
        await watched.until(lambda: watched.losses == [LossReason.CRASHED, LossReason.HUNG])
        await watched.until(lambda: watched.engine.state is EngineState.UP)
