"""The verdict on a machine from its runs, with the reason."""

from __future__ import annotations

import pytest

from darkroom.worker.qualification.verdict import (
    MAX_RUNS,
    Evidence,
    Expectation,
    RunTiming,
    Speed,
    Verdict,
    failed,
    judge,
    skipped,
    speed_of,
    wants_another,
)


def run(its: float, steps: int = 20) -> RunTiming:
    return RunTiming(total_seconds=steps / its + 0.5, sampling_seconds=steps / its, num_steps=steps)


def speed(its: float | None = 43.0, *, seconds: float = 0.6, spread: float = 0.02) -> Speed:
    return Speed(
        its_per_second=its,
        best_its_per_second=its,
        seconds_per_picture=seconds,
        best_seconds_per_picture=seconds,
        spread=spread,
        num_runs=3,
    )


TABLE = Expectation(expected_its=43.0, source="the table")
NOTHING = Expectation()


def test_median_best_and_spread_are_reported() -> None:
    said = speed_of([run(10), run(12), run(11)])
    assert (said.its_per_second, said.best_its_per_second) == (11, 12)
    assert said.spread == pytest.approx(2 / 11)
    assert said.seconds_per_picture == pytest.approx(20 / 11 + 0.5) and said.num_runs == 3


def test_where_no_step_was_seen_the_seconds_speak() -> None:
    said = speed_of([RunTiming(total_seconds=seconds) for seconds in (1.0, 1.1, 1.05)])
    assert said.its_per_second is None and said.seconds_per_picture == 1.05
    assert said.spread == pytest.approx(0.1 / 1.05)


def test_without_a_run_there_is_no_speed_rather_than_zero() -> None:
    with pytest.raises(ValueError):
        speed_of([])
    with pytest.raises(ValueError):
        RunTiming(total_seconds=0)
    assert failed("engine lost").workload_per_second is None and not failed("x").verdict.is_good
    assert skipped("switched off").verdict.is_good


def test_at_least_three_runs_are_made() -> None:
    assert wants_another([run(1)] * 2) and not wants_another([run(1)] * 3)


def test_short_runs_and_runs_that_differ_are_repeated_up_to_a_bound() -> None:
    assert wants_another([run(1000)] * 3)
    assert wants_another([run(1), run(2), run(1)])
    assert not wants_another([run(1), run(2), run(2), run(2)])
    assert not wants_another([run(1), run(2)] * (MAX_RUNS // 2))
    assert not wants_another([run(1), run(2), run(1)], is_cpu=True) and wants_another([run(1000)] * 3, is_cpu=True)


def test_a_machine_that_settles_is_judged_by_what_it_settled_at() -> None:
    said = speed_of([run(1), run(2), run(2), run(2)])
    assert said.its_per_second == 2 and said.spread == 0


def test_what_meets_its_mark_passes() -> None:
    assert judge(speed(), TABLE, Evidence()).verdict is Verdict.PASS
    assert judge(speed(), NOTHING, Evidence()).verdict is Verdict.PASS


def test_below_seven_tenths_of_what_is_expected_is_slow() -> None:
    assert judge(speed(31.0), TABLE, Evidence()).verdict is Verdict.PASS
    slow = judge(speed(30.0), TABLE, Evidence())
    assert slow.verdict is Verdict.SLOW and "30 it/s" in str(slow.reason) and "the table" in str(slow.reason)


def test_what_the_operator_asks_for_is_a_hard_limit() -> None:
    seconds = Expectation(max_seconds=0.5, source="BENCHMARK_MAX_SECONDS")
    assert judge(speed(None, seconds=0.4), seconds, Evidence()).verdict is Verdict.PASS
    said = judge(speed(None, seconds=0.6), seconds, Evidence())
    assert said.verdict is Verdict.SLOW and "0.6 s" in str(said.reason) and "BENCHMARK_MAX_SECONDS" in str(said.reason)


def test_without_steps_the_fleets_seconds_are_the_mark() -> None:
    fleet = Expectation(expected_seconds=1.0, source="history")
    assert judge(speed(None, seconds=1.4), fleet, Evidence()).verdict is Verdict.PASS
    assert judge(speed(None, seconds=1.5), fleet, Evidence()).verdict is Verdict.SLOW


def test_runs_that_differ_by_more_than_a_fifth_are_unstable() -> None:
    said = judge(speed(spread=0.21), TABLE, Evidence())
    assert said.verdict is Verdict.UNSTABLE and "21%" in str(said.reason)
    assert judge(speed(spread=0.2), TABLE, Evidence()).verdict is Verdict.PASS


def test_a_cpu_that_shares_its_cores_is_only_warned_of() -> None:
    said = judge(speed(spread=0.9), NOTHING, Evidence(is_cpu=True))
    assert said.verdict is Verdict.PASS and "90%" in said.warnings[0]


def test_heat_that_costs_speed_is_throttling_and_heat_that_does_not_is_a_warning() -> None:
    hot = Evidence(throttle_reasons=("hw_thermal_slowdown",))
    for measured, expected in ((speed(20.0), TABLE), (speed(spread=0.4), TABLE), (speed(), NOTHING)):
        said = judge(measured, expected, hot)
        assert said.verdict is Verdict.THROTTLED and "hw_thermal_slowdown" in str(said.reason)
    said = judge(speed(), TABLE, hot)
    assert said.verdict is Verdict.PASS and "hw_thermal_slowdown" in said.warnings[0]


def test_wrong_numbers_outweigh_everything() -> None:
    said = judge(speed(), TABLE, Evidence(fault="checksum 1, not 2"))
    assert said.verdict is Verdict.FAULTY and said.reason == "checksum 1, not 2"
