"""The ring of a day's metrics."""

from __future__ import annotations

import pytest

from darkroom.worker.observe.history import MAX_SERIES, MetricHistory, MetricSample

ENDED, WAITING, FREE = "darkroom_jobs_ended_total", "darkroom_queue_jobs", "darkroom_memory_available_bytes"


def ended(count: float, state: str = "completed") -> MetricSample:
    return MetricSample(ENDED, count, (("state", state),))


def test_counters_are_increases_gauges_their_highest_and_free_memory_its_lowest() -> None:
    history = MetricHistory()
    for at, count, waiting, free in ((100.0, 2.0, 1.0, 50.0), (109.0, 5.0, 4.0, 20.0), (190.0, 6.0, 0.0, 70.0)):
        history.add(at, [ended(count), MetricSample(WAITING, waiting), MetricSample(FREE, free)])
    page = history.page(200.0, 120.0, 4)
    found = {series.name: (series.is_counter, series.values) for series in page.series}
    assert page.interval_seconds == 30.0 and page.ends_at == 200.0
    assert found == {
        ENDED: (True, [5.0, None, None, 1.0]),
        WAITING: (False, [4.0, None, None, 0.0]),
        FREE: (False, [20.0, None, None, 70.0]),
    }


def test_the_ring_keeps_the_last_samples_and_none_of_a_series_that_ended() -> None:
    history = MetricHistory(capacity=3)
    history.add(1.0, [MetricSample("darkroom_engine_memory_bytes", 7.0, (("engine", "1"),))])
    for at in (2.0, 3.0, 4.0):
        history.add(at, [MetricSample(WAITING, at)])
    found = {series.name: series.values for series in history.page(4.0, 4.0, 4).series}
    assert found == {WAITING: [None, 2.0, 3.0, 4.0], "darkroom_engine_memory_bytes": [None, None, None, None]}


def test_series_and_names_are_bounded() -> None:
    history = MetricHistory(capacity=4)
    history.add(1.0, (MetricSample("darkroom_gpu_memory_used_bytes", 1.0, (("gpu", str(i)),)) for i in range(500)))
    history.add(2.0, [MetricSample("darkroom_ready", 1.0), ended(0.0), MetricSample(WAITING, float("nan"))])
    assert len(history.page(2.0, 2.0, 1).series) == MAX_SERIES


@pytest.mark.parametrize("count", [0.0, 3.0])
def test_a_counter_appears_with_its_first_increase(count: float) -> None:
    history = MetricHistory()
    history.add(1.0, [ended(count, "failed")])
    assert [series.labels for series in history.page(1.0, 1.0, 1).series] == ([{"state": "failed"}] if count else [])
