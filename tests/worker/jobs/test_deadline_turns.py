"""Places of jobs with a deadline among those that wait."""

from __future__ import annotations

import random

from darkroom.worker.jobs.deadline_turns import OVERTAKEN_SECONDS, Place, QueuedRun, place_of


def new(latest: float, seconds: float = 10, priority: int = 0) -> QueuedRun:
    return QueuedRun(1000, seconds, priority=priority, latest_start_seconds=latest)


QUEUE = [QueuedRun(100, 10), QueuedRun(200, 10), QueuedRun(300, 10)]


def test_a_job_that_has_time_keeps_its_turn() -> None:
    assert place_of(new(latest=35), QUEUE, [5], 1) == Place(35)
    assert place_of(new(latest=0), [], [], 1) == Place(0)


def test_a_job_that_would_be_late_goes_before_as_few_others_as_it_takes() -> None:
    assert place_of(new(latest=34), QUEUE, [5], 1) == Place(25, 299)
    assert place_of(new(latest=6), QUEUE, [5], 1) == Place(5, 99)


def test_a_deadline_that_no_place_keeps_leaves_the_turn() -> None:
    assert place_of(new(latest=4), QUEUE, [5], 1) == Place(35)


def test_who_is_at_an_engine_is_of_higher_priority_or_has_waited_for_long_is_not_overtaken() -> None:
    for first in (
        QueuedRun(100, 10, is_at_engine=True),
        QueuedRun(100, 10, priority=1),
        QueuedRun(100, 10, waited_seconds=OVERTAKEN_SECONDS),
    ):
        assert place_of(new(latest=6), [first, *QUEUE[1:]], [5], 1) == Place(35)
        assert place_of(new(latest=20), [first, *QUEUE[1:]], [5], 1) == Place(15, 199)


def test_a_deadline_of_another_job_is_not_missed_for_it() -> None:
    waiting = [QueuedRun(100, 10), QueuedRun(200, 10, latest_start_seconds=12), QueuedRun(300, 10)]
    assert place_of(new(latest=0), waiting, [], 1) == Place(30)
    assert place_of(new(latest=25), waiting, [], 1) == Place(20, 299)
    late_anyway = [QueuedRun(100, 10), QueuedRun(200, 10, latest_start_seconds=3)]
    assert place_of(new(latest=0), late_anyway, [], 1) == Place(0, 99)


def test_a_job_begins_when_its_place_says_and_breaks_no_deadline_that_was_kept() -> None:
    chance = random.Random(7)
    for _ in range(300):
        queue = [
            QueuedRun(
                100 * number, chance.uniform(1, 20), chance.choice((0, OVERTAKEN_SECONDS)), chance.choice((-1, 0, 1)),
                chance.choice((float("inf"), chance.uniform(0, 60))),
            )
            for number in range(chance.randrange(9))
        ]  # fmt: skip
        running = [chance.uniform(-1, 20) for _ in range(chance.randrange(3))]
        engines, latest = chance.randrange(1, 4), chance.uniform(0, 60)
        found = place_of(new(latest), queue, running, engines)
        assert found.turn_ms is None or found.wait_seconds <= latest
        if found.turn_ms is not None:
            overtaken = [run for run in queue if run.turn_ms > found.turn_ms]
            assert overtaken and all(run.waited_seconds < OVERTAKEN_SECONDS and run.priority <= 0 for run in overtaken)
