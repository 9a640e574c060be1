from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker.jobs.wait_estimate import RunClock, seconds_until_start


def test_an_idle_engine_begins_at_once() -> None:
    assert seconds_until_start(0, [], 1, 10.0) == [0.0]


def test_the_running_job_counts_with_what_is_left_of_it() -> None:
    assert seconds_until_start(2, [4.0], 1, 10.0) == [6.0, 16.0, 26.0]


def test_engines_share_the_line() -> None:
    assert seconds_until_start(3, [4.0, 9.0], 2, 10.0) == [1.0, 6.0, 11.0, 16.0]


def test_a_job_that_has_run_too_long_may_end_any_moment() -> None:
    assert seconds_until_start(1, [99.0], 1, 10.0) == [0.0, 10.0]


def test_nothing_is_known_before_the_first_run() -> None:
    assert RunClock().mean_seconds == 0.0
    assert seconds_until_start(1, [], 0, 0.0) == [0.0, 0.0]


@given(st.integers(0, 40), st.lists(st.floats(0, 50), max_size=4), st.integers(1, 4), st.floats(0.01, 100))
def test_later_ones_never_begin_earlier_and_more_engines_never_make_it_longer(
    num_waiting: int, running: list[float], num_engines: int, mean: float
) -> None:
    starts = seconds_until_start(num_waiting, running, num_engines, mean)
    assert starts == sorted(starts) and len(starts) == num_waiting + 1
    more = seconds_until_start(num_waiting, running, max(num_engines, len(running)) + 1, mean)
    assert all(fast <= slow for fast, slow in zip(more, starts, strict=True))
