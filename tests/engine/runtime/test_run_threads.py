"""One thread, one piece of work after the other."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from darkroom.engine.runtime.run_threads import RunThreads


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


def test_a_reserved_thread_waits_for_its_run_while_others_take_another() -> None:
    threads = RunThreads(max_runs=2)
    assert threads.submit_run(lambda place: place).result(10) == 0
    threads.reserve(0)
    assert [threads.submit_run(lambda place: place).result(10) for _ in range(3)] == [1, 1, 1]
    assert threads.submit(threading.get_ident).result(10) != threading.get_ident()
    assert threads.submit_run(lambda place: place, 0).result(10) == 0
    assert threads.submit_run(lambda place: place).result(10) == 0  # reserved for one run alone
    threads.reserve(0)
    threads.release(0)
    assert threads.submit_run(lambda place: place).result(10) == 0
    threads.close()


def test_nothing_waits_for_ever_where_every_thread_is_reserved() -> None:
    thread = RunThreads()
    assert thread.submit_run(lambda place: place).result(10) == 0
    thread.reserve(0)
    assert thread.submit_run(lambda place: place).result(10) == 0
    thread.close()
