"""PlainAutoscaler: sends no reports; Kubernetes, Knative or nginx read `/metrics`, `/ready`, `/queue-info`.

Its inputs become gauges: the load in the worker and its speed, in the same unit, so that load / speed is the remaining
work in seconds.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from darkroom.worker.autoscaler.autoscaler import Caller, checked_speed
from darkroom.worker.errors import WorkerError
from darkroom.worker.storage.job import JobState


class PlainAutoscaler:
    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, registry=registry)

        self._costs: dict[str, float] = {}
        self._load = gauge(
            "darkroom_pending_cost_units", "Cost of the jobs here; 100 is one 512x512 image of 20 guided steps"
        )
        self._speed = gauge(
            "darkroom_speed_cost_units_per_second", "Cost done in a second; 0 until the worker is qualified"
        )
        self._error = gauge("darkroom_operator_needed", "1 while the worker cannot serve and needs somebody to look")
        self._done = Counter("darkroom_done_cost_units", "Cost of the jobs completed", registry=registry)

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def loaded(self, speed: float) -> None:
        self._speed.set(checked_speed(speed))

    def error_set(self, message: str) -> None:
        self._error.set(1)

    def error_cleared(self) -> None:
        self._error.set(0)

    def draining(self) -> None:
        pass

    def job_accepted(self, job_id: str, cost: float, caller: Caller | None) -> None:
        self._costs.setdefault(job_id, cost)
        self._show()

    def job_started(self, job_id: str) -> None:
        pass

    def job_ended(self, job_id: str, state: JobState) -> None:
        cost = self._costs.pop(job_id, 0.0)
        if state is JobState.COMPLETED:
            self._done.inc(cost)
        self._show()

    def request_refused(self, cost: float, caller: Caller | None, error: WorkerError) -> None:
        pass

    def _show(self) -> None:
        self._load.set(sum(self._costs.values()))
