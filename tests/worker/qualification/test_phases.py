"""The seconds of each phase of the start."""

from __future__ import annotations

import time

import pytest

from darkroom.worker.qualification.phases import Phase, StartUpPhases, process_age_seconds


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_phases_add_up_and_stand_still_once_ready() -> None:
    clock = Clock()
    phases = StartUpPhases(2.0, clock)
    clock.now += 1
    phases.front_is_up()
    for seconds in (3, 4):
        with phases.phase(Phase.BENCHMARK):
            clock.now += seconds
    assert phases.ready() and not phases.ready()
    with phases.phase(Phase.BENCHMARK):
        clock.now += 50
    assert phases.as_json() == {"import": 2.0, "front": 1.0, "benchmark": 7.0, "ready": 10.0}


def test_a_phase_that_breaks_off_counts() -> None:
    clock = Clock()
    phases = StartUpPhases(0.0, clock)
    with pytest.raises(ValueError), phases.phase(Phase.ENGINE):
        clock.now += 5
        raise ValueError
    assert phases.as_json()["engine"] == 5


def test_the_age_of_this_process_grows() -> None:
    first = process_age_seconds()
    time.sleep(0.05)
    assert 0 < first < process_age_seconds() < 3600 * 24
