"""Several engines and one line of jobs: prompts that wait move to whoever is free."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.client.lost import PromptRecalled
from darkroom.worker.engines.pool import EnginePool
from tests.fakes import FakeEngine, draw, wait
from tests.worker.running_front import RunningFront, running_front, until


@contextlib.asynccontextmanager
async def two_engines(tmp_path: Path) -> AsyncIterator[tuple[FakeEngine, FakeEngine, RunningFront]]:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    async with (
        FakeEngine(folders[0]) as one,
        FakeEngine(folders[1]) as two,
        running_front(tmp_path, one, ENGINE_URL=f"{one.url},{two.url}") as front,
    ):
        yield one, two, front


async def is_waiting_at(engine: FakeEngine) -> bool:
    return engine.num_pending == 1


async def has_jobs(front: RunningFront, num_jobs: int) -> bool:
    return len(front.front.store.jobs) == num_jobs


async def test_what_waits_behind_a_long_prompt_goes_to_an_engine_that_falls_idle(tmp_path: Path) -> None:
    async with two_engines(tmp_path) as (one, two, front):
        long = asyncio.create_task(front.sync(wait(), request_id="long"))
        short = asyncio.create_task(front.sync(wait(), request_id="short"))
        await front.until_message("long", "Progress")
        await front.until_message("short", "Progress")
        behind = [asyncio.create_task(front.sync(draw(), request_id=name)) for name in ("behind-1", "behind-2")]
        await until(lambda: is_waiting_at(one))
        await until(lambda: is_waiting_at(two))
        busy, idle = (one, two) if one.runs == ["long-1"] else (two, one)
        await front.http.post("/cancel/short")
        assert [(await task).status_code for task in (short, *behind)] == [499, 200, 200]
        assert (busy.runs, set(idle.runs)) == (["long-1"], {"short-1", "behind-1-1", "behind-2-1"})
        assert (await front.http.get("/result/behind-2")).json()["status"] == "completed"
        await front.http.post("/cancel/long")
        await long


async def test_what_waits_behind_a_long_prompt_is_not_overtaken_for_ever(tmp_path: Path) -> None:
    async with two_engines(tmp_path) as (one, two, front):
        long = asyncio.create_task(front.sync(wait(), request_id="long"))
        await front.until_message("long", "Progress")
        one, two = (one, two) if one.runs else (two, one)
        first = asyncio.create_task(front.sync(wait(), request_id="short-0"))
        await front.until_message("short-0", "Progress")
        behind = [asyncio.create_task(front.sync(draw(), request_id=f"behind-{number}")) for number in (1, 2)]
        await until(lambda: is_waiting_at(one))
        await until(lambda: is_waiting_at(two))
        old = "behind-1-1" if "behind-1-1" in one.pending else "behind-2-1"
        younger = [asyncio.create_task(front.sync(draw(), request_id=f"short-{n}")) for n in range(1, 9)]
        await until(lambda: has_jobs(front, 12))
        two.release()
        assert {(await task).status_code for task in (first, *behind, *younger)} == {200}
        assert two.runs.index(old) <= 6 and sorted(two.runs) == sorted({*two.runs}), two.runs
        await front.http.post("/cancel/long")
        assert (await long).status_code == 499 and one.runs == ["long-1"]


async def test_what_waits_at_an_engine_that_turns_out_bad_goes_to_one_that_serves(tmp_path: Path) -> None:
    async with two_engines(tmp_path) as (one, two, front):
        pool = front.front.services.engines.pool
        pool.set_fit(pool.clients[1], False)
        long = asyncio.create_task(front.sync(wait(), request_id="long"))
        behind = asyncio.create_task(front.sync(draw(), request_id="behind"))
        await until(lambda: is_waiting_at(one))
        pool.set_fit(pool.clients[0], False)
        assert two.runs == []
        pool.set_fit(pool.clients[1], True)
        assert (await behind).status_code == 200
        assert (one.runs, two.runs) == (["long-1"], ["behind-1"])
        await front.http.post("/cancel/long")
        assert (await long).status_code == 499


async def test_a_prompt_runs_once_whatever_breaks_while_it_moves_to_another_engine(tmp_path: Path) -> None:
    def lose_the_answer_to_its_recall(one: FakeEngine, _two: FakeEngine) -> None:
        one.loses_answers, one.loses_answers_to = 1, "/queue"

    def lose_the_answer_to_its_arrival(_one: FakeEngine, two: FakeEngine) -> None:
        two.loses_answers = 1

    def restart_the_engine_that_it_leaves(one: FakeEngine, _two: FakeEngine) -> None:
        one.forget_everything()

    def restart_the_engine_that_it_leaves_and_lose_its_arrival(one: FakeEngine, two: FakeEngine) -> None:
        one.forget_everything()
        two.loses_answers = 1

    async with two_engines(tmp_path) as (one, two, front):
        pool = front.front.services.engines.pool
        for break_something in (
            lose_the_answer_to_its_recall,
            lose_the_answer_to_its_arrival,
            restart_the_engine_that_it_leaves,
            restart_the_engine_that_it_leaves_and_lose_its_arrival,
        ):
            pool.set_fit(pool.clients[1], False)
            long, behind = f"long-{break_something.__name__}", f"behind-{break_something.__name__}"
            waiting = asyncio.create_task(front.sync(wait(), request_id=long))
            moving = asyncio.create_task(front.sync(draw(), request_id=behind))
            await until(lambda: is_waiting_at(one))
            pool.set_fit(pool.clients[1], True)
            break_something(one, two)

            async def have_ended(jobs: tuple[asyncio.Task[Any], ...] = (moving, waiting)) -> bool:
                for engine in (one, two):
                    engine.release()
                return all(job.done() for job in jobs)

            assert (await moving).status_code == 200, break_something
            await until(have_ended)
            assert (await waiting).status_code == 200, break_something
            assert [*one.runs, *two.runs].count(f"{behind}-1") == 1, break_something
            assert f"{behind}-2" not in [*one.runs, *two.runs], break_something


async def test_what_waits_at_the_only_engine_stays_there(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine) as front:
        pool = front.front.services.engines.pool
        long = asyncio.create_task(front.sync(wait(), request_id="long"))
        behind = asyncio.create_task(front.sync(draw(), request_id="behind"))
        await until(lambda: is_waiting_at(engine))
        async with asyncio.TaskGroup() as group:
            holding = group.create_task(_hold(front))
            await asyncio.sleep(0.1)
            assert engine.num_pending == 1 and not holding.done()
            await front.http.post("/cancel/long")
        assert ((await long).status_code, (await behind).status_code) == (499, 200)
        assert not pool.is_held(pool.clients[0])


async def test_a_prompt_that_was_cancelled_keeps_an_engine_busy_only_while_that_is_up() -> None:
    pool = EnginePool([EngineClient("http://127.0.0.1:9"), EngineClient("http://127.0.0.1:9")])
    down, stops = pool.clients
    for client in pool.clients:
        pool.set_up(client, True)
        pool.set_stopping(client, True)
    assert pool.clients_free == []
    entered: list[EngineClient] = []

    async def hold(client: EngineClient) -> None:
        async with pool.hold(client):
            entered.append(client)

    async with asyncio.TaskGroup() as group:
        for client in pool.clients:
            group.create_task(hold(client))
        await asyncio.sleep(0.05)
        assert entered == []
        pool.set_up(down, False)
        await asyncio.sleep(0.05)
        assert entered == [down]
        pool.set_up(down, True)
        assert pool.clients_free == []
        pool.set_stopping(stops, False)
    assert entered == [down, stops] and pool.clients_free == [stops]


async def _hold(front: RunningFront) -> None:
    pool = front.front.services.engines.pool
    async with pool.hold(pool.clients[0]):
        pass


class CountingClient(EngineClient):
    """An engine that nobody reaches, so that nothing of it can be taken back."""

    num_asked = 0

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.runner.recall_waiting = self.recall_waiting  # type: ignore[method-assign]

    async def recall_waiting(self) -> None:
        self.num_asked += 1


async def test_what_could_not_be_taken_back_is_asked_for_again_as_long_as_an_engine_is_idle() -> None:
    crowded, idle = (CountingClient(f"http://127.0.0.1:{port}") for port in (1, 2))
    pool = EnginePool([crowded, idle])
    pool.set_up(idle, False)

    async def is_asked_twice() -> bool:
        return crowded.num_asked >= 2

    async with pool.engine((0, 1)), pool.engine((0, 2)):
        pool.set_up(idle, True)
        await until(is_asked_twice)
    assert idle.num_asked == 0


async def test_prompts_that_run_side_by_side_are_neither_taken_back_nor_overtaken() -> None:
    engines = [CountingClient(f"http://127.0.0.1:{port}") for port in (1, 2)]
    pool = EnginePool(engines, prompts_per_engine=4)
    async with contextlib.AsyncExitStack() as stack:
        for number in range(4):
            await stack.enter_async_context(pool.engine((0, number)))
        for number in range(4, 12):  # each begins and ends beside the others
            async with asyncio.timeout(60), pool.engine((0, number)):
                assert max(pool.prompts_by_url.values()) == 3
    assert [engine.num_asked for engine in engines] == [0, 0]


class PlayedEngine(EngineClient):
    """Runs one prompt at a time, the first first; one that waits may be taken back, and sometimes is not heard of."""

    def __init__(self, url: str, chance: random.Random, begun: list[int]) -> None:
        super().__init__(url)
        self._chance, self._begun = chance, begun
        self._turn = asyncio.Lock()
        self._waiting: dict[int, asyncio.Event] = {}
        self.runner.recall_waiting = self.recall_waiting  # type: ignore[method-assign]
        self.num_there = self.most_there = 0

    async def play(self, number: int, seconds: float) -> None:
        self.num_there += 1
        self.most_there = max(self.most_there, self.num_there)
        recalled = self._waiting[number] = asyncio.Event()
        acquiring, recalling = asyncio.ensure_future(self._turn.acquire()), asyncio.ensure_future(recalled.wait())
        await asyncio.wait({acquiring, recalling}, return_when=asyncio.FIRST_COMPLETED)
        recalling.cancel()
        del self._waiting[number]
        try:
            if not acquiring.done():
                acquiring.cancel()
                await asyncio.sleep(self._chance.uniform(0, 0.002))
                raise PromptRecalled("taken back")
            self._begun.append(number)
            await asyncio.sleep(seconds)
            self._turn.release()
        finally:
            self.num_there -= 1

    async def recall_waiting(self) -> None:
        await asyncio.sleep(self._chance.uniform(0, 0.002))
        if self._chance.random() < 0.8:
            for recalled in self._waiting.values():
                recalled.set()


async def test_whatever_happens_every_prompt_begins_once() -> None:
    chance, begun, ended = random.Random(20261121), list[int](), list[int]()
    engines = [PlayedEngine(f"http://127.0.0.1:{port}", chance, begun) for port in (1, 2, 3)]
    pool = EnginePool(engines, give_up_seconds=None)

    async def job(number: int) -> None:
        seconds = chance.choice((0.001, 0.005, 0.03))
        await asyncio.sleep(chance.uniform(0, 1.0))
        while True:
            try:
                async with pool.engine((chance.choice((0, 0, -5)), number)) as engine:
                    assert isinstance(engine, PlayedEngine)
                    await engine.play(number, seconds)
                break
            except PromptRecalled:
                continue
        ended.append(number)

    async def disturb() -> None:
        while True:
            await asyncio.sleep(chance.uniform(0, 0.02))
            pool.set_fit(chance.choice(engines), chance.random() < 0.6)
            pool.set_up(chance.choice(engines), chance.random() < 0.7)
            if chance.random() < 0.3:
                async with pool.hold(chance.choice(engines)):
                    await asyncio.sleep(chance.uniform(0, 0.005))

    disturbing = asyncio.create_task(disturb())
    async with asyncio.timeout(60):
        await asyncio.gather(*map(job, range(200)))
    disturbing.cancel()
    assert sorted(begun) == sorted(ended) == list(range(200))
    assert max(engine.most_there for engine in engines) == 2 and not any(pool.prompts_by_url.values())


async def test_an_engine_is_kept_idle_in_turn_while_the_others_go_on() -> None:
    one, two = EngineClient("http://127.0.0.1:1"), EngineClient("http://127.0.0.1:2")
    pool = EnginePool([one, two], give_up_seconds=None)
    order: list[str] = []

    async def hold(name: str, number: int, release: asyncio.Event) -> None:
        async with pool.engine((0, number)) as client:
            order.append(f"{name} at {'one' if client is one else 'two'}")
            await release.wait()

    async def keep(number: int, release: asyncio.Event) -> None:
        async with pool.kept_idle(one, (0, number)):
            order.append("one kept")
            await release.wait()

    first, rest, kept = asyncio.Event(), asyncio.Event(), asyncio.Event()
    tasks = [asyncio.create_task(hold("a", 1, first))]
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(keep(2, kept)), *(asyncio.create_task(hold(name, 3, rest)) for name in "bc")]
    await asyncio.sleep(0.01)
    assert order == ["a at one", "b at two", "c at two"]  # nobody overtakes at the first engine
    first.set()
    await asyncio.sleep(0.01)
    tasks.append(asyncio.create_task(hold("d", 4, rest)))
    await asyncio.sleep(0.01)
    assert order[3:] == ["one kept"]
    kept.set()
    await asyncio.sleep(0.01)
    assert order[4:] == ["d at one"]
    rest.set()
    await asyncio.gather(*tasks)
    for client in (one, two):
        await client.close()
