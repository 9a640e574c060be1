"""One thread, one piece of work after the other."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from engine.runtime.run_threads import RunThreads


def _see(seen: list[tuple[int, int]], number: int) -> None:
    seen.append((number, threading.get_ident()))


def test_work_runs_in_order_on_one_thread_that_is_not_the_callers() -> None:
    thread = RunThreads()
    seen: list[tuple[int, int]] = []
    futures = [thread.submit(partial(_see, seen, number)) for number in range(9)]
    for future in futures:
        future.result()
    thread.close()
    assert [number for number, _ in seen] == list(range(9))
    assert len({ident for _, ident in seen}) == 1 and seen[0][1] != threading.get_ident()


def test_an_error_goes_to_whoever_asked_and_the_thread_goes_on() -> None:
    thread = RunThreads()

    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        thread.submit(leave).result()
    assert thread.submit(lambda: "still here").result() == "still here"
    thread.close()


def test_close_finishes_what_was_asked_for_and_takes_no_more() -> None:
    thread = RunThreads()
    future = thread.submit(lambda: 1)
    thread.close()
    thread.close()
    assert future.result() == 1
    with pytest.raises(RuntimeError):
        thread.submit(lambda: 2)
