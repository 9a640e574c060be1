"""Metrics of the front for `/metrics`, with a registry of their own. Created at start and passed on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.registry import Collector

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class Metrics:
    def __init__(self, count_states: Callable[[], Mapping[str, int]], *collectors: Collector) -> None:
        self._registry = CollectorRegistry()
        for collector in collectors:
            self._registry.register(collector)
        self._count_states = count_states
        self._ended = Counter("darkroom_jobs_ended", "Jobs by their final state", ["state"], registry=self._registry)
        self._refused = Counter(
            "darkroom_requests_refused", "Requests refused, by the error's code", ["code"], registry=self._registry
        )
        self._stage = Histogram(
            "darkroom_stage_seconds", "Time in each stage", ["stage"], buckets=SECONDS, registry=self._registry
        )
        self._jobs = Gauge("darkroom_jobs", "Jobs that have not ended, by state", ["state"], registry=self._registry)
        self._phases = Gauge(
            "darkroom_startup_seconds", "Time in each phase of the start", ["phase"], registry=self._registry
        )
        self._workload = Gauge(
            "darkroom_benchmark_workload_per_second",
            "The benchmark's speed; 100 is one 512x512 picture of 20 steps; 0: not measured",
            registry=self._registry,
        )
        self._its = Gauge(
            "darkroom_benchmark_its_per_second", "Sampling steps a second; 0: none", registry=self._registry
        )
        self._verdict = Gauge(
            "darkroom_benchmark_verdict", "1 at the benchmark's verdict", ["verdict"], registry=self._registry
        )
        ProcessCollector(registry=self._registry)  # memory, open files and processor time of the front
        self._tasks = Gauge("darkroom_front_tasks", "Asyncio tasks of the front", registry=self._registry)
        self._threads = Gauge("darkroom_front_threads", "Threads of the front", registry=self._registry)
        self._ready = Gauge("darkroom_ready", "1 when a job sent now would be accepted", registry=self._registry)

    @property
    def registry(self) -> CollectorRegistry:
        """Registry for metrics of other components."""
        return self._registry

    def job_ended(self, state: str, phase_ms: Mapping[str, int | None]) -> None:
        """Count a job by its final state, and record the milliseconds of each phase that it had."""
        self._ended.labels(state).inc()
        for stage, milliseconds in phase_ms.items():
            if milliseconds is not None:
                self._stage.labels(stage).observe(milliseconds / 1000)

    def qualified(self, report: Mapping[str, Any], phases: Mapping[str, float]) -> None:
        """Set the gauges of the machine's benchmark and start-up phases."""
        for phase, seconds in phases.items():
            self._phases.labels(phase).set(seconds)
        self._workload.set(report.get("workload_per_second") or 0)
        self._its.set(report.get("its_per_second") or 0)
        self._verdict.clear()
        self._verdict.labels(str(report["verdict"])).set(1)

    def refused(self, code: str) -> None:
        self._refused.labels(code).inc()

    def text(self, *, is_ready: bool) -> bytes:
        """Return the current values in Prometheus' text format. Called on the event loop."""
        for state, count in self._count_states().items():
            self._jobs.labels(state).set(count)
        self._tasks.set(len(asyncio.all_tasks()))
        self._threads.set(threading.active_count())
        self._ready.set(1 if is_ready else 0)
        return generate_latest(self._registry)
