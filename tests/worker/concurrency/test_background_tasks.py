"""BackgroundTasks ends its tasks, also those that swallow a cancellation."""

from __future__ import annotations

import asyncio

import pytest

from darkroom.worker.concurrency.background_tasks import BackgroundTasks


async def swallow(num_cancellations: int) -> None:
    """Run on until cancelled once more than this number of times."""
    for _ in range(num_cancellations):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue
    await asyncio.Event().wait()


def ignore(task: asyncio.Task[None], error: BaseException) -> None:
    raise AssertionError(f"{task.get_name()} failed: {error}")


@pytest.mark.parametrize("num_cancellations", [0, 1, 3])
async def test_a_task_that_swallows_cancellations_is_cancelled_again(
    num_cancellations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("darkroom.worker.concurrency.background_tasks.CANCEL_AGAIN_SECONDS", 0.01)
    tasks = BackgroundTasks(ignore)
    tasks.spawn(swallow(num_cancellations))
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await tasks.close()
    assert len(tasks) == 0


async def test_a_task_that_never_ends_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("darkroom.worker.concurrency.background_tasks.CANCEL_AGAIN_SECONDS", 0.01)
    tasks = BackgroundTasks(ignore)
    tasks.spawn(swallow(1000))
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await tasks.close(patience_seconds=0.05)
    assert len(tasks) == 1
    monkeypatch.setattr("darkroom.worker.concurrency.background_tasks.CANCEL_AGAIN_SECONDS", 0.0)
    await tasks.close()


async def test_a_failed_task_is_reported_once_with_its_error() -> None:
    failed: list[tuple[str, str]] = []
    tasks = BackgroundTasks(lambda task, error: failed.append((task.get_name(), str(error))))

    async def fail() -> None:
        raise ValueError("broken")

    tasks.spawn(fail(), "a")
    for _ in range(3):
        await asyncio.sleep(0)
    assert failed == [("a", "broken")]
    await tasks.close()
    assert len(failed) == 1
