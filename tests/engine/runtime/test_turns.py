"""Runs of one engine take turns; what they park is made together, by one of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from darkroom.engine.runtime.run_threads import RunThreads
from darkroom.engine.runtime.turns import Parked, Turns, TurnSelector

PATIENCE_SECONDS = 30.0


class Made(Parked):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


@pytest.fixture
def turns() -> Turns:
    return Turns(lambda: lambda: None)


def in_threads(*work: Callable[[], Any]) -> None:
    """Run functions at the same time; raise the first error."""
    errors: list[BaseException] = []

    def call(function: Callable[[], Any]) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=call, args=(function,), daemon=True) for function in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), "a run waits for ever"
    if errors:
        raise errors[0]


def test_one_run_at_a_time_has_the_turn(turns: Turns) -> None:
    inside: list[int] = []

    def work() -> None:
        with turns.run():
            for _ in range(50):
                inside.append(1)
                assert turns.has_turn and len(inside) == 1
                inside.pop()
                with turns.elsewhere():
                    pass

    in_threads(*[work] * 4)
    turns.check_integrity()


def test_what_is_parked_is_made_together_when_no_run_has_anything_else_to_do(turns: Turns) -> None:
    batches: list[list[str]] = []
    begun = threading.Barrier(3)

    def evaluate(waiting: Sequence[Any]) -> None:
        assert turns.has_turn
        batches.append(sorted(item.name for item in waiting))
        for item in waiting:
            item.is_over = True

    def work(name: str, num_steps: int) -> None:
        with turns.run():
            with turns.elsewhere():
                begun.wait(PATIENCE_SECONDS)
            for _ in range(num_steps):
                turns.park(Made(name), evaluate)
                assert turns.has_turn

    in_threads(lambda: work("a", 3), lambda: work("b", 2), lambda: work("c", 1))
    turns.check_integrity()
    assert sorted(sum(batches, [])) == ["a", "a", "a", "b", "b", "c"]


def test_a_run_takes_back_what_it_does_not_want_any_more(turns: Turns) -> None:
    parked, begun = Made("a"), threading.Event()

    def waits() -> None:
        with turns.run():
            begun.set()
            while not turns.num_ready:
                time.sleep(0.001)
            turns.park(parked, lambda waiting: pytest.fail("it was taken back"))

    def works() -> None:
        assert begun.wait(PATIENCE_SECONDS)
        with turns.run():
            turns.take_back(parked)

    in_threads(waits, works)
    turns.check_integrity()
    assert parked.is_over


def test_who_asks_is_alone_when_the_others_have_ended_and_newcomers_wait(turns: Turns) -> None:
    order: list[str] = []
    inside, asked = threading.Event(), threading.Event()

    def other() -> None:
        with turns.run():
            inside.set()
            with turns.elsewhere():
                assert asked.wait(PATIENCE_SECONDS)
            order.append("other")

    def lonely() -> None:
        assert inside.wait(PATIENCE_SECONDS)
        with turns.run():
            asked.set()
            with turns.alone() as had_company, turns.alone() as again:
                order.append("alone")
                assert had_company and not again and turns.num_runs == 1

    in_threads(other, lonely)
    turns.check_integrity()
    assert order == ["other", "alone"]


def test_two_that_want_to_be_alone_are_so_one_after_the_other(turns: Turns) -> None:
    inside: list[int] = []
    begun = threading.Barrier(2)

    def work() -> None:
        with turns.run():
            with turns.elsewhere():
                begun.wait(PATIENCE_SECONDS)
            with turns.alone():
                inside.append(1)
                with turns.elsewhere():
                    pass
                assert len(inside) == 1
                inside.pop()

    in_threads(work, work)
    turns.check_integrity()


def test_who_waits_to_be_alone_gives_up_when_it_is_cancelled(turns: Turns) -> None:
    cancelled, over = threading.Event(), threading.Event()

    def works() -> None:
        with turns.run(), turns.elsewhere():
            assert over.wait(PATIENCE_SECONDS), "it waited for the other run"

    def lonely() -> None:
        with turns.run():
            while turns.num_runs < 2:
                with turns.elsewhere():
                    time.sleep(0.001)
            with turns.alone(cancelled.is_set):
                assert turns.has_turn and turns.num_runs == 2
            over.set()

    def cancels() -> None:
        while not turns.num_lonely:
            time.sleep(0.001)
        cancelled.set()
        turns.nudge()

    in_threads(works, lonely, cancels)
    turns.check_integrity()


def test_state_of_the_process_is_each_runs_own() -> None:
    state = ["none"]

    def save() -> Callable[[], None]:
        saved = state[0]
        return lambda: state.__setitem__(0, saved)

    turns = Turns(save)

    def work(name: str) -> None:
        with turns.run():
            state[0] = name
            for _ in range(20):
                with turns.elsewhere():
                    pass
                assert state[0] == name

    in_threads(lambda: work("a"), lambda: work("b"), lambda: work("c"))


def test_a_sleeping_event_loop_gives_its_turn_away(turns: Turns) -> None:
    done = threading.Event()

    def sleeps() -> None:
        async def wait() -> None:
            assert await asyncio.to_thread(done.wait, PATIENCE_SECONDS)

        with turns.run(), asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(TurnSelector(turns))) as runner:
            runner.run(wait())

    def works() -> None:
        with turns.run():
            done.set()

    in_threads(sleeps, works)
    turns.check_integrity()


def test_runs_are_begun_together_and_other_work_by_itself() -> None:
    threads = RunThreads(2)
    both, order = threading.Barrier(2), []

    def run(place: int) -> None:
        both.wait(PATIENCE_SECONDS)
        order.append("run")

    first, second = threads.submit_run(run), threads.submit_run(run)
    other = threads.submit(lambda: order.append("other"))
    third = threads.submit_run(lambda place: order.append("later"))
    for future in (first, second, other, third):
        future.result(PATIENCE_SECONDS)
    threads.close()
    assert order == ["run", "run", "other", "later"]


def test_without_company_runs_are_on_the_first_thread() -> None:
    threads = RunThreads(3)
    assert [threads.submit_run(lambda place: place).result(PATIENCE_SECONDS) for _ in range(5)] == [0] * 5
    threads.close()
