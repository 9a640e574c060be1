"""Estimated wait of a new job, from costs and pace alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from darkroom.worker.jobs.wait_estimate import Run, RunClock, seconds_until_start


def test_an_idle_engine_begins_at_once() -> None:
    assert seconds_until_start([], [], 1) == [0.0]


def test_the_running_job_counts_with_what_is_left_of_it() -> None:
    assert seconds_until_start([10.0, 20.0], [6.0], 1) == [6.0, 16.0, 36.0]


def test_engines_share_the_line() -> None:
    assert seconds_until_start([10.0] * 3, [6.0, 1.0], 2) == [1.0, 6.0, 11.0, 16.0]


def test_a_job_that_has_run_too_long_may_end_any_moment() -> None:
    assert seconds_until_start([10.0], [-89.0], 1) == [0.0, 10.0]


def test_nothing_is_known_before_the_first_run() -> None:
    clock = RunClock()
    assert (clock.mean_seconds, clock.seconds_of(100)) == (0.0, 0.0)
    assert seconds_until_start([0.0], [], 0) == [0.0, 0.0]


def test_the_benchmarks_pace_counts_until_a_run_has_shown_the_true_one() -> None:
    clock = RunClock()
    clock.expect(cost_per_second=50.0)
    assert clock.seconds_of(100) == pytest.approx(2.0)
    clock.add(seconds=6.0, cost=200.0)
    clock.add(seconds=2.0, cost=200.0)
    assert clock.seconds_of(100) == pytest.approx(2.0) and clock.mean_seconds == 4.0
    assert clock.seconds_of(400) == pytest.approx(8.0)


SECONDS = st.floats(0.01, 100)


@given(st.lists(SECONDS, max_size=40), st.lists(st.floats(-50, 50), max_size=4), st.integers(1, 4))
def test_later_ones_never_begin_earlier_and_more_engines_never_make_it_longer(
    waiting: list[float], left: list[float], num_engines: int
) -> None:
    starts = seconds_until_start(waiting, left, num_engines)
    assert starts == sorted(starts) and len(starts) == len(waiting) + 1
    more = seconds_until_start(waiting, left, max(num_engines, len(left)) + 1)
    assert all(fast <= slow for fast, slow in zip(more, starts, strict=True))


def test_the_pace_from_before_a_restart_counts_until_the_benchmark_or_a_run_has_another() -> None:
    clock = RunClock([Run(4.0, 200.0, 2)])
    assert clock.seconds_of(100) == pytest.approx(2.0)
    assert clock.plan(100) == (2.0, "jobs of this worker before its last start")
    clock.expect(cost_per_second=100.0)
    assert clock.plan(100) == (1.0, "the benchmark of this worker")
    clock.add(seconds=5.0, cost=100.0)
    assert clock.plan(100) == (5.0, "jobs of this worker")


def test_an_estimate_of_the_benchmark_is_for_plans_alone() -> None:
    clock = RunClock()
    assert clock.plan(100) == (0.0, "no job and no benchmark was run yet")
    clock.expect(cost_per_second=50.0, is_estimate=True)
    assert clock.seconds_of(100) == 0.0
    assert clock.plan(100) == (2.0, "an estimate from the benchmark of a smaller network")


def test_the_seconds_of_a_file_are_those_of_runs_that_made_some() -> None:
    clock = RunClock([Run(1.0, 10.0, 0), Run(6.0, 10.0, 2)])
    assert clock.seconds_per_file == pytest.approx(3.0)
    clock.add(seconds=2.0, cost=1.0, num_files=2)
    assert clock.seconds_per_file == pytest.approx(2.0)
    assert RunClock().seconds_per_file is None
