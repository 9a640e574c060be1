"""Calls that may hang run in a thread that nobody else waits for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from darkroom.worker.concurrency.dedicated_thread import run_in_dedicated_thread


async def test_gives_what_the_call_returns_or_raises() -> None:
    assert await run_in_dedicated_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await run_in_dedicated_thread(divmod, 7, 0)


async def test_calls_that_hang_leave_the_shared_threads_free() -> None:
    release = threading.Event()
    hanging = [asyncio.create_task(run_in_dedicated_thread(release.wait)) for _ in range(50)]
    await asyncio.sleep(0)
    assert await asyncio.to_thread(threading.active_count) > 50
    release.set()
    assert await asyncio.gather(*hanging) == [True] * 50


async def test_one_that_ends_after_it_was_given_up_disturbs_nobody() -> None:
    release = threading.Event()
    hanging = asyncio.create_task(run_in_dedicated_thread(release.wait))
    await asyncio.sleep(0)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    release.set()
    await asyncio.sleep(0.01)


def test_the_end_of_the_process_does_not_wait_for_one_that_hangs() -> None:
    code = (
        "import asyncio, threading; from darkroom.worker.concurrency.dedicated_thread import run_in_dedicated_thread\n"
        "async def main():\n"
        "    task = asyncio.create_task(run_in_dedicated_thread(threading.Event().wait)); await asyncio.sleep(0.01)\n"
        "asyncio.run(main())"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
