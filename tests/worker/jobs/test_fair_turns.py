"""Callers with many jobs take turns with those that have few."""

from __future__ import annotations

import asyncio
import random

from darkroom.worker.jobs.fair_turns import FairTurns
from darkroom.worker.settings.priority import turn_ms_of
from darkroom.worker.storage.job import Job, JobRequest, JobTimes


def job(number: int, caller: str, priority: int = 0) -> Job:
    request = JobRequest(priority=priority, caller=caller)
    return Job(f"j{number}", number, "hash", request, {}, JobTimes(number), turn_ms=turn_ms_of(number, priority, 1000))


def turn_ms(at_ms: int, priority: int) -> int:
    return turn_ms_of(at_ms, priority, 1000)


async def run(turns: FairTurns, jobs: list[Job]) -> list[str]:
    """The jobs in the order in which they got in; each stays for a moment."""
    begun: list[str] = []

    async def one(job: Job) -> None:
        async with turns.turn(job):
            begun.append(job.id)
            await asyncio.sleep(0.002)

    await asyncio.gather(*map(one, jobs))
    return begun


async def test_jobs_of_one_caller_get_in_by_their_order() -> None:
    jobs = [job(1, "a"), job(2, "a", priority=-1), job(3, "a", priority=1), job(4, "a")]
    assert await run(FairTurns(1, turn_ms), jobs) == ["j1", "j3", "j4", "j2"]


async def test_a_job_that_had_to_wait_joins_the_end_of_the_line() -> None:
    jobs = [job(1, "a"), job(2, "a"), job(3, "b")]
    await run(FairTurns(1, turn_ms), jobs)
    assert [item.turn_ms for item in (jobs[0], jobs[2])] == [1, 3]
    assert jobs[1].turn_ms > 3


async def test_nobody_s_jobs_and_no_limit_wait_for_nothing() -> None:
    for turns, caller in ((FairTurns(1, turn_ms), ""), (FairTurns(None, turn_ms), "a")):
        inside = [job(number, caller) for number in range(5)]
        async with turns.turn(inside[0]), turns.turn(inside[1]), turns.turn(inside[2]):
            assert [item.turn_ms for item in inside] == [0, 1, 2, 3, 4]


async def test_what_is_inside_already_takes_no_place() -> None:
    turns = FairTurns(1, turn_ms)
    async with turns.turn(job(1, "a")), turns.turn(job(2, "a"), is_inside=True):
        pass


async def test_places_come_back_however_a_job_leaves() -> None:
    turns, choices = FairTurns(2, turn_ms), random.Random(7)
    tasks = [asyncio.create_task(run(turns, [job(number, choices.choice("ab"))])) for number in range(60)]
    for task in choices.sample(tasks, 30):
        await asyncio.sleep(0.001)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(60):
        async with turns.turn(job(100, "a")), turns.turn(job(101, "a")), turns.turn(job(102, "b")):
            pass
