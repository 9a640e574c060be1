"""Metrics for a platform that is told nothing: load, speed, errors, readiness."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from darkroom.worker.autoscaler.plain import PlainAutoscaler
from darkroom.worker.storage.job import JobState


def figures(registry: CollectorRegistry) -> dict[str, float]:
    samples = [sample for metric in registry.collect() for sample in metric.samples]
    return {sample.name: sample.value for sample in samples if not sample.name.endswith("_created")}


def test_load_speed_and_errors_are_to_be_read_from_the_metrics() -> None:
    registry = CollectorRegistry()
    plain = PlainAutoscaler(registry)
    plain.job_accepted("a", 100.0, None)
    plain.job_accepted("a", 100.0, None)
    plain.job_accepted("b", 50.0, None)
    plain.loaded(20.0)
    plain.error_set("broken")
    assert figures(registry) == {
        "darkroom_pending_cost_units": 150.0,
        "darkroom_speed_cost_units_per_second": 20.0,
        "darkroom_operator_needed": 1.0,
        "darkroom_done_cost_units_total": 0.0,
    }
    plain.error_cleared()
    plain.job_ended("a", JobState.COMPLETED)
    plain.job_ended("b", JobState.FAILED)
    told = figures(registry)
    assert (
        told["darkroom_pending_cost_units"],
        told["darkroom_done_cost_units_total"],
        told["darkroom_operator_needed"],
    ) == (0.0, 100.0, 0.0)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("inf"), float("nan")])
def test_no_worker_is_loaded_at_a_speed_that_says_nothing(speed: float) -> None:
    with pytest.raises(ValueError):
        PlainAutoscaler(CollectorRegistry()).loaded(speed)
