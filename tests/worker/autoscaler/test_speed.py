"""The speed that platforms are told, from the benchmark's report or assumed."""

from __future__ import annotations

from typing import Any

from darkroom.worker.autoscaler.speed import ASSUMED_SPEED, assumed_speed, measured_speed
from darkroom.worker.settings.workload import Workload

ONE_ENGINE = {"seconds_per_picture": 0.5, "workload_per_second": 50.0}


def test_the_speed_is_in_the_unit_that_requests_are_counted_in() -> None:
    assert measured_speed(ONE_ENGINE, Workload.COMPUTED) == 50.0
    assert measured_speed(ONE_ENGINE, Workload.STATIC) == 200.0
    assert measured_speed(ONE_ENGINE, Workload.ONE) == 2.0


def test_engines_that_serve_add_up() -> None:
    serving: list[dict[str, Any]] = [{**ONE_ENGINE, "serves": True}, {"seconds_per_picture": 1.0, "serves": True}]
    left_out = [{"verdict": "failed", "serves": False}, {"seconds_per_picture": 1.0, "serves": False}]
    report = {"engines": serving + left_out, "workload_per_second": 75.0}
    assert measured_speed(report, Workload.STATIC) == 300.0
    assert measured_speed(report, Workload.COMPUTED) == 75.0


def test_without_a_measurement_there_is_none_and_something_is_assumed() -> None:
    for report in ({"verdict": "skipped"}, {"seconds_per_picture": 0, "workload_per_second": None}):
        assert [measured_speed(report, workload) for workload in Workload] == [0, 0, 0]
    assert assumed_speed(Workload.STATIC) == ASSUMED_SPEED
    assert assumed_speed(Workload.ONE) == ASSUMED_SPEED / 100


def test_what_a_cpu_ran_instead_is_not_counted_as_an_image() -> None:
    shrunk = {"seconds_per_picture": 0.5, "workload_per_second": 0.5, "shrunk": "64x64"}
    assert measured_speed(shrunk, Workload.STATIC) == 0.5
    assert measured_speed(shrunk, Workload.ONE) == 0.005
