"""Work on documents ends: at its limit of processor time, and with the task that waits for it."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from darkroom.worker.concurrency.off_loop import (
    LARGE_ELEMENTS,
    LARGE_TEXT_LENGTH,
    NUM_THREADS,
    needs_thread,
    off_loop,
    run_bounded,
)
from darkroom.worker.errors import RequestRejected


class Endless:
    """Work that never returns, and that tells whether it still runs."""

    def __init__(self) -> None:
        self.rounds = 0
        self.has_begun = threading.Event()

    def __call__(self) -> None:
        self.has_begun.set()
        while True:
            self.rounds += 1

    async def has_ended(self) -> bool:
        for _ in range(3000):
            before = self.rounds
            await asyncio.sleep(0.02)
            if self.rounds == before:
                return True
        return False


async def test_returns_and_raises_what_the_function_does() -> None:
    assert await off_loop(True, sorted, [2, 1]) == [1, 2]
    assert await off_loop(False, sorted, [2, 1]) == [1, 2]
    with pytest.raises(ZeroDivisionError):
        await run_bounded(lambda: 1 // 0)


async def test_work_over_its_processor_time_is_refused_by_name_and_its_thread_ends() -> None:
    endless = Endless()
    with pytest.raises(RequestRejected) as refused:
        await run_bounded(endless, max_seconds=0.1)
    (problem,) = refused.value.problems
    assert (problem.field, problem.type) == ("input.workflow_json", "takes_too_long")
    assert await endless.has_ended()


async def test_work_ends_with_the_task_that_waits_for_it() -> None:
    endless = Endless()
    task = asyncio.create_task(run_bounded(endless))
    assert await asyncio.to_thread(endless.has_begun.wait, 30)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await endless.has_ended()


async def test_threads_serve_others_after_they_were_stopped() -> None:
    for _ in range(2):
        tasks = [asyncio.create_task(run_bounded(Endless(), max_seconds=0.05)) for _ in range(2 * NUM_THREADS)]
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(error, RequestRejected) for error in done)
    assert await asyncio.gather(*(run_bounded(lambda: 7) for _ in range(2 * NUM_THREADS))) == [7] * 2 * NUM_THREADS


async def test_waiting_for_a_thread_is_no_processor_time() -> None:
    sleepers = [asyncio.create_task(run_bounded(lambda: time.sleep(0.3), max_seconds=0.2)) for _ in range(NUM_THREADS)]
    last = asyncio.create_task(run_bounded(lambda: 7, max_seconds=0.2))
    assert await last == 7
    await asyncio.gather(*sleepers)


def test_a_document_is_large_by_its_values_and_by_its_texts_at_any_depth() -> None:
    assert not needs_thread({"1": {"inputs": {"text": "a cat", "seed": 7}}})
    assert needs_thread({"1": {"inputs": {"text": "a" * (LARGE_TEXT_LENGTH + 1)}}})
    assert needs_thread({"1": {"inputs": {"text": [[1] * LARGE_ELEMENTS]}}})
    assert needs_thread({str(index): {} for index in range(LARGE_ELEMENTS + 1)})
    assert needs_thread({}, {"a" * (LARGE_TEXT_LENGTH + 1): 1})
    nested: list[object] = []
    for _ in range(10 * LARGE_ELEMENTS):
        nested = [nested]
    assert needs_thread(nested)


async def test_work_that_loses_the_first_end_is_ended_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("darkroom.worker.concurrency.off_loop.STOP_AGAIN_SECONDS", 0.1)
    endless, num_lost = Endless(), 0

    def loses_one() -> None:
        nonlocal num_lost
        try:
            endless()
        except BaseException:  # noqa: BLE001 - as in a finaliser, where Python drops what is raised
            num_lost += 1
        endless()

    task = asyncio.create_task(run_bounded(loses_one))
    assert await asyncio.to_thread(endless.has_begun.wait, 30)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for _ in range(3000):
        if num_lost:
            break
        await asyncio.sleep(0.02)
    assert num_lost == 1
    await asyncio.sleep(0.2)
    assert await endless.has_ended()
