"""Prompts that do not stop: whose doing a loss is, who pays for it, and an engine that is not ours to replace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.client.lost import EngineLost
from darkroom.worker.engines.client.run import Run
from darkroom.worker.engines.loss import Loss, LossReason
from darkroom.worker.engines.pool import EnginePool
from darkroom.worker.engines.stopping import StopRequests
from darkroom.worker.engines.watch import EngineState
from darkroom.worker.errors import EngineUnreachable, JobTimedOut
from tests.fakes import FakeEngine, draw, wait
from tests.worker.engines.test_watch import watched_engine
from tests.worker.running_front import running_front, until


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    async with FakeEngine(tmp_path) as engine:
        yield engine


class Runs:
    """Prompts of jobs at one supervised engine."""

    def __init__(self, client: EngineClient, engine: FakeEngine) -> None:
        self.client = client
        self._engine = engine
        self.tasks: dict[str, asyncio.Task[object]] = {}

    async def begin(self, name: str) -> None:
        started = asyncio.Event()

        def on_message(kind: str, _data: object) -> None:
            if kind == "execution_start":
                started.set()

        running = self.client.runner.run(wait(), f"{name}-1", on_message, timeout_seconds=60)
        self.tasks[name] = asyncio.create_task(running)
        if len(self.tasks) == 1:
            await started.wait()
        await self.until(lambda run: run.is_sent, name)

    async def until(self, is_so: Callable[[Run], bool], name: str) -> None:
        """Wait until the client has heard something of the engine about a prompt."""

        async def is_there() -> bool:
            run = self.client.runs.get(f"{name}-1")
            return run is not None and is_so(run)

        await until(is_there)

    async def lose(self, reason: LossReason, running: str | None = None) -> Loss:
        loss = Loss(reason, prompt_id=self.client.runs.find_culprit(reason, running))
        self.client.mark_lost(loss)
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        return loss

    def lost(self, name: str) -> EngineLost:
        error = self.tasks[name].exception()
        assert isinstance(error, EngineLost)
        return error


@pytest.fixture
async def runs(engine: FakeEngine) -> AsyncIterator[Runs]:
    client = EngineClient(engine.url, is_supervised=True)
    await client.start()
    runs = Runs(client, engine)
    yield runs
    for task in runs.tasks.values():
        task.cancel()
    await asyncio.gather(*runs.tasks.values(), return_exceptions=True)
    await client.close()


async def test_the_prompt_that_hangs_is_the_culprit_and_the_one_behind_it_pays_nothing(runs: Runs) -> None:
    await runs.begin("first")
    await runs.begin("behind")
    loss = await runs.lose(LossReason.HUNG, running="first-1")
    assert loss.prompt_id == "first-1"
    assert runs.lost("first").is_culprit and runs.lost("first").was_running
    assert not runs.lost("behind").is_culprit and not runs.lost("behind").was_running


async def test_a_silent_engine_makes_suspects_of_the_running_prompt_and_the_next(runs: Runs) -> None:
    """The running one may have ended, and the next have begun, without any word of it."""
    for name in ("first", "behind", "last"):
        await runs.begin(name)
    await runs.lose(LossReason.UNRESPONSIVE)
    assert [runs.lost(name).is_suspect for name in ("first", "behind", "last")] == [True, True, False]
    assert [runs.lost(name).was_running for name in ("first", "behind", "last")] == [True, False, False]
    assert not any(runs.lost(name).is_culprit for name in runs.tasks)


async def test_a_prompt_that_only_saves_is_not_what_silences_the_engine(runs: Runs, engine: FakeEngine) -> None:
    await runs.begin("saving")
    await engine.say("darkroom_saving", prompt_id="saving-1")
    await runs.until(lambda run: run.is_past_nodes, "saving")
    await runs.begin("stuck")
    await runs.begin("behind")
    engine.is_down = True
    runs.tasks["stuck"].cancel()  # nothing has said that it has begun
    await asyncio.wait({runs.tasks["stuck"]})
    assert [request.prompt_id for request in runs.client.stops.running] == ["stuck-1"]
    await runs.lose(LossReason.STOP_IGNORED)
    assert runs.lost("saving").is_bystander and not runs.lost("saving").was_running
    assert not runs.lost("behind").is_bystander and not runs.lost("behind").was_running


async def test_a_crash_costs_the_one_that_saves_and_the_next_an_attempt(runs: Runs, engine: FakeEngine) -> None:
    for name in ("saving", "next", "behind"):
        await runs.begin(name)
    await engine.say("darkroom_saving", prompt_id="saving-1")
    await runs.until(lambda run: run.is_past_nodes, "saving")
    await runs.lose(LossReason.CRASHED)
    assert [runs.lost(name).was_running for name in ("saving", "next", "behind")] == [True, True, False]


@pytest.mark.parametrize("reason", [LossReason.CRASHED, LossReason.UNRESPONSIVE])
async def test_of_prompts_that_ran_side_by_side_each_runs_alone_afterwards(
    runs: Runs, engine: FakeEngine, reason: LossReason
) -> None:
    for name in ("first", "second", "behind", "last"):
        await runs.begin(name)
    await engine.say("execution_start", prompt_id="second-1")
    await runs.until(lambda run: run.started_at is not None, "second")
    await runs.lose(reason)
    may_be = [True, True, reason is LossReason.UNRESPONSIVE, False]
    assert [runs.lost(name).is_suspect for name in runs.tasks] == may_be
    assert not any(runs.lost(name).is_culprit for name in runs.tasks)


async def test_a_silent_engine_with_one_prompt_leaves_no_doubt(runs: Runs) -> None:
    await runs.begin("only")
    await runs.lose(LossReason.UNRESPONSIVE)
    assert runs.lost("only").is_culprit


async def test_what_waits_behind_a_prompt_that_ignores_its_end_pays_nothing(runs: Runs, engine: FakeEngine) -> None:
    engine.ignores_interrupts = True
    await runs.begin("stuck")
    await runs.begin("behind")
    runs.tasks["stuck"].cancel()
    await asyncio.wait({runs.tasks["stuck"]})
    assert [request.prompt_id for request in runs.client.stops.running] == ["stuck-1"]
    for_each = [LossReason.STOP_IGNORED, LossReason.UNRESPONSIVE, LossReason.CRASHED]
    assert [runs.client.runs.find_culprit(reason) for reason in for_each] == ["stuck-1"] * 3
    await runs.lose(LossReason.STOP_IGNORED)
    assert not runs.lost("behind").was_running and not runs.lost("behind").is_culprit
    assert runs.client.stops.running == []


async def test_a_prompt_of_the_front_itself_is_nobodys_job(runs: Runs) -> None:
    own = asyncio.create_task(
        runs.client.runner.run(wait(), "benchmark-1", lambda *_: None, timeout_seconds=60, is_own=True)
    )
    await runs.until(lambda run: run.started_at is not None, "benchmark")
    assert runs.client.runs.find_culprit(LossReason.CRASHED) is None
    assert runs.client.runs.find_culprit(LossReason.HUNG, "benchmark-1") is None
    own.cancel()
    await asyncio.gather(own, return_exceptions=True)


async def test_a_run_ends_by_its_time_limit_at_an_engine_that_answers_nothing(engine: FakeEngine) -> None:
    """Nor has it said that the prompt has begun."""
    silent = asyncio.Event()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one request on; after the prompt has been taken nothing is answered any more."""
        head = await reader.readuntil(b"\r\n\r\n")
        if silent.is_set() or b"/ws" in head:
            await asyncio.sleep(600)
        silent.set()
        taken = b'{"prompt_id": "silent-1"}'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(taken), taken))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    client = EngineClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", is_supervised=True)
    with pytest.raises(JobTimedOut):
        await client.runner.run(draw(), "silent-1", lambda *_: None, timeout_seconds=1.0)
    assert [request.prompt_id for request in client.stops.running] == ["silent-1"]
    await client.close()
    server.close()


async def test_an_engine_of_others_that_ignores_a_cancel_is_left_alone_until_it_is_idle(
    tmp_path: Path, engine: FakeEngine
) -> None:
    engine.ignores_interrupts = True
    async with running_front(tmp_path, engine) as front:
        stuck = asyncio.create_task(front.sync(wait(), request_id="stuck"))
        await front.until_message("stuck", "Progress")
        assert (await front.http.post("/cancel/stuck")).status_code == 200
        assert (await stuck).status_code == 499
        waiting = asyncio.create_task(front.sync(draw(), request_id="waiting"))
        (backend,) = (await front.http.get("/health")).json()["backends"]
        assert (backend["state"], backend["running"]) == ("stopping", "stuck-1")
        assert backend["seconds_without_progress"] >= 0
        await asyncio.sleep(0.5)
        assert engine.runs == ["stuck-1"] and not engine.pending
        engine.ignores_interrupts = False  # it is asked again and again
        assert (await waiting).status_code == 200
        assert engine.runs == ["stuck-1", "waiting-1"]


async def test_another_engine_runs_what_waits_behind_a_stuck_prompt(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    async with (
        FakeEngine(folders[0]) as one,
        FakeEngine(folders[1]) as two,
        running_front(tmp_path, one, ENGINE_URL=f"{one.url},{two.url}") as front,
    ):

        async def are_both_up() -> bool:
            return str((await front.http.get("/health")).json()["backends_healthy"]) == "2/2"

        await until(are_both_up)
        one.ignores_interrupts = two.ignores_interrupts = True
        stuck = asyncio.create_task(front.sync(wait(), request_id="stuck"))
        await front.until_message("stuck", "Progress")
        await front.http.post("/cancel/stuck")
        assert (await stuck).status_code == 499
        jobs = [asyncio.create_task(front.sync(draw(), request_id=f"job-{number}")) for number in range(5)]
        assert [(await job).status_code for job in jobs] == [200] * 5
        assert sorted(map(len, (one.runs, two.runs))) == [1, 5]


async def test_our_engine_is_replaced_when_a_prompt_has_not_stopped_in_time(tmp_path: Path) -> None:
    async with watched_engine(tmp_path, grace_seconds=0.5, place_of_all="queue_running") as watched:
        await watched.engine.client.stops.stop("stuck-1", None, is_running=True, longest_gap_seconds=0.0)
        assert watched.engine.state is EngineState.STOPPING
        await watched.until(lambda: watched.losses == [LossReason.STOP_IGNORED])
        await watched.until(lambda: watched.engine.state is EngineState.UP)


async def test_an_engine_in_which_another_prompt_computes_is_not_replaced_for_one_that_waits(tmp_path: Path) -> None:
    async with watched_engine(tmp_path, grace_seconds=0.1, place_of_all="queue_running", runs_at_once=2) as watched:
        watched.beat("slow-1", 0.0)
        await watched.until(lambda: watched.engine.report(None, 0).running == "slow-1")
        await watched.engine.client.stops.stop("stuck-1", None, is_running=True, longest_gap_seconds=0.0)
        await asyncio.sleep(0.5)
        assert watched.losses == [] and watched.engine.state is EngineState.STOPPING
        watched.beat("stuck-1", 0.0)
        await watched.until(lambda: watched.losses == [LossReason.STOP_IGNORED])


async def test_one_that_reports_seldom_has_longer_to_stop(tmp_path: Path) -> None:
    async with watched_engine(tmp_path, grace_seconds=0.1, place_of_all="queue_running") as watched:
        await watched.engine.client.stops.stop("slow-1", None, is_running=True, longest_gap_seconds=10.0)
        await asyncio.sleep(1.0)
        assert watched.losses == [] and watched.engine.state is EngineState.STOPPING


async def test_a_prompt_that_stops_leaves_the_engine_as_it_is(tmp_path: Path) -> None:
    async with watched_engine(tmp_path, grace_seconds=2.0) as watched:
        await watched.engine.client.stops.stop("good-1", None, is_running=True, longest_gap_seconds=0.0)
        await watched.until(lambda: watched.engine.state is EngineState.UP)
        await asyncio.sleep(2.5)  # longer than the grace
        assert watched.losses == []


async def test_a_prompt_that_begins_while_it_is_withdrawn_occupies_the_engine() -> None:
    places = ["queue_pending", "queue_running", None]

    async def place_of(_prompt_id: str) -> str | None:
        return places.pop(0)

    async def ask(_prompt_id: str) -> None:
        return

    seen: list[int] = []
    stops = StopRequests(ask, place_of, lambda: seen.append(len(stops.running)))
    await stops.stop("late-1", None, is_running=False, longest_gap_seconds=0.0)
    while stops.is_any_open:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    assert seen == [0, 1, 0]


async def test_asking_goes_on_while_the_engine_answers_nothing() -> None:
    answers: list[str | None] = ["queue_running", None]
    asked: list[str] = []

    async def place_of(_prompt_id: str) -> str | None:
        if len(asked) < 2:
            asked.append("in vain")
            raise EngineUnreachable("no answer")
        return answers.pop(0)

    async def ask(prompt_id: str) -> None:
        asked.append(prompt_id)

    stops = StopRequests(ask, place_of)
    await stops.stop("p-1", None, is_running=True, longest_gap_seconds=0.0)
    while stops.is_any_open:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    assert not answers


async def test_a_prompt_that_runs_alone_has_the_engine_for_itself() -> None:
    client = EngineClient("http://127.0.0.1:9")
    pool, order = EnginePool([client], give_up_seconds=None), []

    async def use(number: int, *, is_alone: bool = False) -> None:
        async with pool.engine((0, number), is_alone=is_alone):
            order.append((number, pool.prompts_by_url[client.url]))
            await asyncio.sleep(0.02)

    async with pool.engine((0, 0)):
        tasks = [asyncio.create_task(use(number, is_alone=number == 1)) for number in range(1, 5)]
        await asyncio.sleep(0.05)
        assert order == []  # nobody passes the one that waits for an empty engine
    await asyncio.gather(*tasks)
    assert order[0] == (1, 1)
    assert [number for number, _ in order] == [1, 2, 3, 4]
    assert pool.prompts_by_url == {client.url: 0}
