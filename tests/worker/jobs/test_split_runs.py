"""One prompt at several engines: outcomes are joined, lost parts run again, a failure ends all parts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.client.files import LocalFolders
from darkroom.worker.engines.client.lost import EngineLost
from darkroom.worker.engines.outcome import RunOutcome
from darkroom.worker.engines.pool import EnginePool
from darkroom.worker.errors import NodeFailed, OutOfMemory
from darkroom.worker.jobs.split_runs import RunPart, SplitRuns
from darkroom.worker.storage.job import Job, JobRequest, JobTimes
from tests.worker.prompts.test_prompt_parts import INFO, batch, seeds


class KnownEngine(EngineClient):
    """An engine that is not there: only its node list and folders are used."""

    def __init__(self, number: int, folder: Path) -> None:
        folders = LocalFolders(folder / "input", folder / "output", folder / f"temp-{number}")
        super().__init__(f"http://127.0.0.1:{number}", folders=folders, has_check=True)
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    async def object_info(self) -> Mapping[str, Any]:
        if self.meanwhile is not None:
            await self.meanwhile()
        return INFO


def shown_by(part: RunPart) -> RunOutcome:
    """The files that the targets of a part would save, one for each item of its batch."""
    cut: Any = part.prompt.get("latent.items")
    count = cut["inputs"]["length"] if cut else 1
    first = cut["inputs"]["batch_index"] if cut else 0
    outputs = {
        target: {"images": [{"filename": f"{target}-{first + number}"} for number in range(count)]}
        for target in part.targets or ("o",)
    }
    return RunOutcome(outputs, {"outputs": outputs}, tuning={"quality": "same"})


class Runs:
    """Runs parts as the test says, and counts them by engine."""

    def __init__(self, does: Callable[[RunPart], Awaitable[RunOutcome]] | None = None) -> None:
        self.parts: list[RunPart] = []
        self.num_cancelled = 0
        self._does = does

    async def __call__(self, part: RunPart) -> RunOutcome:
        self.parts.append(part)
        try:
            return shown_by(part) if self._does is None else await self._does(part)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise


def a_job(prompt: Mapping[str, object], **fields: Any) -> Job:
    return Job("j", 1, "", JobRequest(is_split=True, **fields), prompt, JobTimes(0))


class Bench:
    """A pool of engines, at the first of which a job has its slot."""

    def __init__(self, folder: Path, num_engines: int = 3) -> None:
        self.engines = [KnownEngine(number, folder) for number in range(1, num_engines + 1)]
        self.pool = EnginePool(self.engines)

    async def run(self, prompt: Mapping[str, object], runs: Runs, job: Job | None = None) -> RunOutcome:
        job = job or a_job(prompt)
        async with self.pool.engine(job.order) as engine:
            outcome = await SplitRuns(self.pool).run(job, prompt, engine, runs)
        assert set(self.pool.prompts_by_url.values()) == {0}
        return outcome

    async def close(self) -> None:
        for engine in self.engines:
            await engine.close()


@pytest.fixture
async def bench(tmp_path: Path) -> Any:
    made = Bench(tmp_path)
    yield made
    await made.close()


def names_of(outcome: RunOutcome) -> dict[str, list[str]]:
    return {node_id: [item["filename"] for item in shown["images"]] for node_id, shown in outcome.outputs.items()}


async def test_outputs_of_all_engines_come_back_as_one_in_the_workflows_order(bench: Bench) -> None:
    runs = Runs()
    outcome = await bench.run(seeds(10, 40, 20, 30), runs)
    assert names_of(outcome) == {f"o{number}": [f"o{number}-0"] for number in range(4)}
    assert list(outcome.outputs) == ["o0", "o1", "o2", "o3"] and outcome.entry["outputs"] == outcome.outputs
    assert outcome.tuning == {"quality": "same", "split": {"engines": 3, "by": "outputs"}}
    assert len({part.engine.url for part in runs.parts}) == 3
    assert [part.prompt_id for part in runs.parts] == ["j-1.part1", "j-1.part2", "j-1.part3"]


async def test_items_of_a_batch_come_back_in_their_order(bench: Bench) -> None:
    async def last_first(part: RunPart) -> RunOutcome:
        await asyncio.sleep(0.01 if part.is_first else 0)
        return shown_by(part)

    outcome = await bench.run(batch(5), Runs(last_first))
    assert names_of(outcome) == {"o": ["o-0", "o-1", "o-2", "o-3", "o-4"]}
    assert outcome.tuning["split"] == {"engines": 3, "by": "batch"}


async def test_a_part_whose_engine_is_lost_or_short_of_memory_runs_again_at_the_first_one(bench: Bench) -> None:
    async def fails(part: RunPart) -> RunOutcome:
        if not part.is_again and part.prompt_id.endswith("part2"):
            raise EngineLost("gone", was_running=True)
        if not part.is_again and part.prompt_id.endswith("part3"):
            return RunOutcome({}, {}, error=OutOfMemory("full"))
        return shown_by(part)

    runs = Runs(fails)
    outcome = await bench.run(batch(6), runs)
    assert names_of(outcome) == {"o": [f"o-{number}" for number in range(6)]}
    assert [part.engine for part in runs.parts[3:]] == [runs.parts[0].engine] * 2


async def test_the_loss_of_the_first_engine_is_the_loss_of_the_run_and_ends_the_other_parts(bench: Bench) -> None:
    async def fails(part: RunPart) -> RunOutcome:
        if part.is_first:
            raise EngineLost("gone", was_running=True)
        await asyncio.sleep(60)
        raise AssertionError("not ended")

    runs = Runs(fails)
    with pytest.raises(EngineLost):
        await bench.run(batch(6), runs)
    assert runs.num_cancelled == 2


async def test_a_failed_node_of_any_part_is_the_outcome_and_ends_the_others(bench: Bench) -> None:
    error = NodeFailed("no")

    async def fails(part: RunPart) -> RunOutcome:
        if part.prompt_id.endswith("part3"):
            return RunOutcome({}, {}, error=error)
        await asyncio.sleep(60)
        raise AssertionError("not ended")

    runs = Runs(fails)
    assert (await bench.run(batch(6), runs)).error is error
    assert runs.num_cancelled == 2


async def test_a_cancellation_ends_all_parts(bench: Bench) -> None:
    begun = asyncio.Event()

    async def waits(part: RunPart) -> RunOutcome:
        if part.prompt_id.endswith("part3"):
            begun.set()
        await asyncio.sleep(60)
        raise AssertionError("not ended")

    runs = Runs(waits)
    task = asyncio.create_task(bench.run(batch(6), runs))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert runs.num_cancelled == 3 and set(bench.pool.prompts_by_url.values()) == {0}


async def test_a_request_runs_whole_while_other_jobs_wait_or_engines_are_busy(bench: Bench) -> None:
    async with bench.pool.engine((0, 1)), bench.pool.engine((0, 2)):
        runs = Runs()
        job = a_job(batch())
        async with bench.pool.engine(job.order) as engine:
            outcome = await SplitRuns(bench.pool).run(job, batch(), engine, runs)
    assert outcome.tuning["split"] == {"engines": 1, "reason": "no other engine of this worker is idle"}
    assert [(part.prompt_id, part.targets) for part in runs.parts] == [("j-1", None)]


async def test_a_request_runs_whole_where_another_job_takes_an_engine_meanwhile(bench: Bench) -> None:
    taken = contextlib.AsyncExitStack()

    async def take_the_others() -> None:
        for number in range(1, 3):
            await taken.enter_async_context(bench.pool.engine((1, number)))

    bench.engines[0].meanwhile = take_the_others
    job = a_job(batch(6))
    async with bench.pool.engine(job.order, only=bench.engines[0]) as engine:
        outcome = await SplitRuns(bench.pool).run(job, batch(6), engine, Runs())
    await taken.aclose()
    assert outcome.tuning["split"] == {"engines": 1, "reason": "other engines got prompts meanwhile"}


async def test_a_second_attempt_runs_whole(bench: Bench) -> None:
    job = a_job(batch())
    job.begin_retry("")
    outcome = await bench.run(batch(), Runs(), job)
    assert outcome.tuning["split"] == {"engines": 1, "reason": "an engine was lost or short of memory"}


async def test_quality_exact_keeps_a_batch_whole_and_splits_outputs(bench: Bench) -> None:
    whole = await bench.run(batch(), Runs(), a_job(batch(), quality="exact"))
    assert whole.tuning["split"]["engines"] == 1
    split = await bench.run(seeds(4, 4), Runs(), a_job(seeds(4, 4), quality="exact"))
    assert split.tuning["split"] == {"engines": 2, "by": "outputs"}


def test_a_later_part_reports_its_own_nodes_as_done_once_it_has_left_them() -> None:
    reported: list[tuple[str, Mapping[str, Any]]] = []
    part = RunPart(EngineClient("http://127.0.0.1:1"), {}, "j-1.part2", own_nodes=frozenset({"s", "o"}))
    report = part.reports(lambda kind, data: reported.append((kind, data)))
    for node_id in ("loader", "s", "o", None):
        report("executing", {"node": node_id})
        report("progress", {"node": node_id, "value": 1, "max": 2})
    assert reported == [("execution_cached", {"nodes": ["s"]}), ("execution_cached", {"nodes": ["o"]})]
