"""Two engines of one front, on the CPU: they draw at the same time, and the loss of one loses nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.nodes import draw, read_tally
from tests.faults.rig import Rig, a_rig

pytestmark = pytest.mark.slow


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with a_rig(tmp_path, ENGINES="2") as rig:
        yield rig


async def engines_of(rig: Rig) -> list[dict[str, Any]]:
    backends: list[dict[str, Any]] = (await rig.get("/health"))[1]["backends"]
    return backends


async def until_both_are_up(rig: Rig) -> None:
    await rig.until_ready()
    while [engine["state"] for engine in await engines_of(rig)] != ["up", "up"]:
        pass


async def test_two_jobs_are_drawn_at_the_same_time_each_by_an_engine_of_its_own(rig: Rig) -> None:
    await rig.start()
    await until_both_are_up(rig)
    for name in ("one", "two"):
        await rig.submit(name, draw(name, seconds=2.0))
    assert [(await rig.until(name))["status"] for name in ("one", "two")] == ["completed"] * 2
    assert [stroke.is_end for stroke in read_tally(rig.base)] == [False, False, True, True]
    engines = await engines_of(rig)
    assert len({engine["pid"] for engine in engines}) == len({engine["url"] for engine in engines}) == 2


async def test_the_loss_of_one_engine_loses_nothing_and_the_other_goes_on(rig: Rig) -> None:
    await rig.start()
    await until_both_are_up(rig)
    names = [f"job-{number}" for number in range(6)]
    for name in names:
        await rig.submit(name, draw(name, seconds=0.5))
    await rig.until_begun("job-0")
    rig.kill_engine()
    assert [(await rig.until(name))["status"] for name in names] == ["completed"] * 6
    assert sum(rig.num_begun(name) for name in names) <= 7  # only what the lost one was at is drawn once more
    await until_both_are_up(rig)
    assert sum(sum(engine["restarts"].values()) for engine in await engines_of(rig)) == 1


async def test_engines_that_die_again_and_again_while_prompts_move_lose_nothing(tmp_path: Path) -> None:
    chance = random.Random(20261121)
    names = [f"job-{number}" for number in range(40)]
    async with a_rig(tmp_path, constants={"supervision": {"max_restarts": 1000}}, ENGINES="2") as rig:
        await rig.start()
        await until_both_are_up(rig)
        for name in names:
            await rig.submit(name, draw(name, seconds=chance.choice((0.05, 0.2, 1.5))))
        num_killed = 0
        while num_killed < 8:
            pids = [engine["pid"] for engine in await engines_of(rig) if engine["prompts"]]
            if pids:
                rig.kill_process(chance.choice(pids))
                num_killed += 1
            await asyncio.sleep(chance.uniform(0.2, 1.5))
        ended = {name: await rig.until(name) for name in names}
    lost_twice = {name for name, result in ended.items() if result["status"] != "completed"}
    assert all(ended[name]["error"]["code"] == "engine_crashed" for name in lost_twice)
    begun = {name: rig.num_begun(name) for name in names}
    assert set(begun.values()) <= {1, 2} and {name for name in names if begun[name] < 2}.isdisjoint(lost_twice)
    assert sum(begun.values()) <= len(names) + num_killed  # only what a lost one was at is drawn once more
