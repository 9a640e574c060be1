"""Memory of large results: who waits, and that nobody waits for ever."""

from __future__ import annotations

import asyncio

import pytest

from darkroom.worker.errors import NotReady
from darkroom.worker.gateway.result_memory import COPIES, LARGE_BYTES, ResultMemory, SpoolBudget

SIZE = 2 * LARGE_BYTES


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Users:
    """Tasks that hold leases until they are let go, and how many hold one."""

    def __init__(self, memory: ResultMemory) -> None:
        self._memory = memory
        self.go_on = asyncio.Event()
        self.num_held = 0

    async def use(self, size_bytes: int) -> None:
        async with self._memory.lease(size_bytes):
            self.num_held += 1
            try:
                await self.go_on.wait()
            finally:
                self.num_held -= 1


async def test_as_many_large_results_as_fit_and_small_ones_behind_none() -> None:
    users = Users(ResultMemory(2 * SIZE * COPIES))
    tasks = [asyncio.create_task(users.use(SIZE)) for _ in range(5)]
    await settled()
    assert users.num_held == 2
    small = asyncio.create_task(users.use(LARGE_BYTES))
    await settled()
    assert users.num_held == 3
    users.go_on.set()
    await asyncio.gather(*tasks, small)
    assert users.num_held == 0


async def test_one_that_is_larger_than_all_memory_is_handled_alone() -> None:
    users = Users(ResultMemory(SIZE))
    first, second = (asyncio.create_task(users.use(size)) for size in (100 * SIZE, SIZE))
    await settled()
    assert users.num_held == 1
    users.go_on.set()
    await asyncio.gather(first, second)


async def test_a_caller_that_leaves_gives_its_turn_and_its_memory_to_the_next() -> None:
    users = Users(ResultMemory(SIZE * COPIES))
    first, second, third = (asyncio.create_task(users.use(SIZE)) for _ in range(3))
    await settled()
    second.cancel()
    first.cancel()
    await settled()
    assert users.num_held == 1 and not third.done()
    third.cancel()
    await asyncio.gather(first, second, third, return_exceptions=True)
    users.go_on.set()
    await users.use(SIZE)


def test_results_that_arrive_share_so_many_bytes_and_give_them_back() -> None:
    spool = SpoolBudget(1000)
    with spool.spooling() as first, spool.spooling() as second:
        first(600)
        second(300)
        with pytest.raises(NotReady) as full:
            second(200)
        assert full.value.retry_after_seconds == 2.0
    with spool.spooling() as third:
        third(1000)
    assert spool.num_bytes == 0
