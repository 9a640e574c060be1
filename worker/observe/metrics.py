"""Metrics of the front for `/metrics`, with a registry of their own. Created at start and passed on.

These series exist from the start, at 0: `increase()` would miss the first event of one that appears with it. They are
few; those of routes appear with their first request.
"""

from __future__ import annotations

import asyncio
import platform
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.registry import Collector

from darkroom.worker.observe.history import MetricSample

SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
OTHER_CODE = "internal_error"


@dataclass(frozen=True, slots=True)
class LabelValues:
    """Every value of the labels: final states of jobs, their stages, error codes, verdicts and phases of the start."""

    states: Sequence[str]
    stages: Sequence[str]
    codes: Sequence[str]
    verdicts: Sequence[str]
    phases: Sequence[str]


@dataclass(frozen=True, slots=True)
class EndedJob:
    """Figures of a job that has ended. `run_seconds` None: it did not run; `code` None: it did not fail."""

    state: str
    phase_ms: Mapping[str, int | None]
    total_seconds: float
    run_seconds: float | None
    num_outputs: int
    code: str | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Jobs that no engine has begun, and the age of the oldest in seconds; 0 without one."""

    num_jobs: int = 0
    oldest_seconds: float = 0.0


class Metrics:
    def __init__(
        self,
        labels: LabelValues,
        version: str,
        count_states: Callable[[], Mapping[str, int]],
        waiting: Callable[[], Waiting],
        *collectors: Collector,
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, without use
        self._registry = CollectorRegistry()
        for collector in collectors:
            self._registry.register(collector)
        self._labels = labels
        self._count_states = count_states
        self._waiting_now = waiting
        info = Info("darkroom_build", "Version of the front", registry=self._registry)
        info.info({"version": version, "python": platform.python_version()})
        self._make_job_metrics()
        self._make_start_metrics()
        ProcessCollector(registry=self._registry)  # memory, open files and processor time of the front
        self._tasks = self._gauge("darkroom_front_tasks", "Asyncio tasks of the front")
        self._threads = self._gauge("darkroom_front_threads", "Threads of the front")
        self._ready = self._gauge("darkroom_ready", "1 when a job sent now would be accepted")

    def _make_job_metrics(self) -> None:
        labels, registry = self._labels, self._registry
        self._ended = Counter("darkroom_jobs_ended", "Jobs by their final state", ["state"], registry=registry)
        self._failures = Counter(
            "darkroom_job_failures", "Jobs that did not complete, by the error's code", ["code"], registry=registry
        )
        self._refused = Counter(
            "darkroom_requests_refused", "Requests refused, by the error's code", ["code"], registry=registry
        )
        self._stage = self._histogram("darkroom_stage_seconds", "Time of a job in each stage", "stage")
        self._total = self._histogram("darkroom_job_seconds", "Time from a job's acceptance to its end")
        self._wait = self._histogram("darkroom_job_wait_seconds", "Time from a job's acceptance to its engine's start")
        self._run = self._histogram("darkroom_job_run_seconds", "Time of a job on its engine")
        self._image = self._histogram("darkroom_picture_seconds", "Time on the engine of each output of a job")
        self._jobs = Gauge("darkroom_jobs", "Jobs that have not ended, by state", ["state"], registry=registry)
        self._queue = self._gauge("darkroom_queue_jobs", "Jobs that no engine has begun")
        self._oldest = self._gauge("darkroom_queue_oldest_age_seconds", "Age of the oldest job that waits; 0: none")
        for state in labels.states:
            self._ended.labels(state)
        for code in (*labels.codes, OTHER_CODE):
            self._failures.labels(code)
            self._refused.labels(code)
        for stage in labels.stages:
            self._stage.labels(stage)

    def _make_start_metrics(self) -> None:
        self._phases = Gauge(
            "darkroom_startup_seconds", "Time in each phase of the start", ["phase"], registry=self._registry
        )
        self._its = self._gauge("darkroom_benchmark_steps_per_second", "Sampling steps a second; 0: not measured")
        self._verdict = Gauge(
            "darkroom_benchmark_verdict", "1 at the benchmark's verdict", ["verdict"], registry=self._registry
        )
        for phase in self._labels.phases:
            self._phases.labels(phase)
        for verdict in self._labels.verdicts:
            self._verdict.labels(verdict)

    @property
    def registry(self) -> CollectorRegistry:
        """Registry for metrics of other components."""
        return self._registry

    def job_started(self, wait_seconds: float) -> None:
        """Record the wait of a job that an engine has begun."""
        self._wait.observe(max(0.0, wait_seconds))

    def job_ended(self, job: EndedJob) -> None:
        """Count a job by its final state, and record its durations."""
        self._ended.labels(job.state).inc()
        self._total.observe(max(0.0, job.total_seconds))
        if job.code is not None:
            self._failures.labels(self._known(job.code)).inc()
        if job.run_seconds is not None:
            self._run.observe(job.run_seconds)
            for _ in range(job.num_outputs):
                self._image.observe(job.run_seconds / job.num_outputs)
        for stage, milliseconds in job.phase_ms.items():
            if milliseconds is not None:
                self._stage.labels(stage).observe(milliseconds / 1000)

    def qualified(self, report: Mapping[str, Any], phases: Mapping[str, float]) -> None:
        """Set the gauges of the machine's benchmark and start-up phases."""
        for phase, seconds in phases.items():
            self._phases.labels(phase).set(seconds)
        self._its.set(report.get("its_per_second") or 0)
        for verdict in self._labels.verdicts:
            self._verdict.labels(verdict).set(verdict == str(report["verdict"]))

    def refused(self, code: str) -> None:
        self._refused.labels(self._known(code)).inc()

    def text(self, *, is_ready: bool) -> bytes:
        """Return the current values in Prometheus' text format. Called on the event loop."""
        self._read_gauges()
        self._ready.set(1 if is_ready else 0)
        return generate_latest(self._registry)

    def samples(self, names: Collection[str]) -> Iterator[MetricSample]:
        """Yield the current samples with these names. Called on the event loop."""
        self._read_gauges()
        for family in self._registry.collect():
            for sample in family.samples:
                if sample.name in names:
                    yield MetricSample(sample.name, sample.value, tuple(sorted(sample.labels.items())))

    def _read_gauges(self) -> None:
        for state, count in self._count_states().items():
            self._jobs.labels(state).set(count)
        waiting = self._waiting_now()
        self._queue.set(waiting.num_jobs)
        self._oldest.set(waiting.oldest_seconds)
        self._tasks.set(len(asyncio.all_tasks()))
        self._threads.set(threading.active_count())

    def _known(self, code: str) -> str:
        return code if code in self._labels.codes else OTHER_CODE

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(name, about, registry=self._registry)

    def _histogram(self, name: str, about: str, *labels: str) -> Histogram:
        return Histogram(name, about, labels, buckets=SECONDS, registry=self._registry)
