"""A limited number of semaphore handed out in order, to those who still want one."""

from __future__ import annotations

import asyncio

from darkroom.worker.jobs.priority_semaphore import PrioritySemaphore, PrioritySemaphores


async def test_a_free_place_goes_to_the_lowest_order_and_not_to_who_came_first() -> None:
    semaphore, entered = PrioritySemaphore(1), []

    async def use(order: tuple[int, int]) -> None:
        async with semaphore.acquire(order):
            entered.append(order)

    async with semaphore.acquire((0, 1)):
        waiting = [asyncio.create_task(use(order)) for order in [(0, 2), (-5, 4), (10, 0), (0, 3)]]
        await asyncio.sleep(0)
        assert entered == []
    await asyncio.gather(*waiting)
    assert entered == [(-5, 4), (0, 2), (0, 3), (10, 0)]


async def test_who_is_cancelled_in_the_line_or_on_the_threshold_takes_no_place() -> None:
    semaphore = PrioritySemaphore(1)

    async def use(order: tuple[int, int]) -> None:
        async with semaphore.acquire(order):
            await asyncio.sleep(0)

    async with semaphore.acquire((0, 0)):
        in_line, on_threshold = (asyncio.create_task(use((0, number))) for number in (2, 1))
        await asyncio.sleep(0)
        in_line.cancel()
    on_threshold.cancel()  # it has just been given the place and has not woken
    await asyncio.gather(in_line, on_threshold, return_exceptions=True)
    async with asyncio.timeout(60), semaphore.acquire((0, 9)):
        pass


async def test_a_name_whose_places_are_all_taken_keeps_no_other_waiting() -> None:
    semaphore, release = PrioritySemaphores(2), asyncio.Event()

    async def use(name: str) -> str:
        async with semaphore.acquire(name, (0, 0)):
            await release.wait()
            return name

    hanging = [asyncio.create_task(use("slow")) for _ in range(3)]
    await asyncio.sleep(0)
    async with asyncio.timeout(60), semaphore.acquire("other", (0, 9)):
        pass
    release.set()
    assert await asyncio.gather(*hanging) == ["slow"] * 3
