"""Metrics of one gateway for `/metrics`: its requests, and the jobs and workers of the fleet as it sees them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from darkroom.worker.errors import DatabaseUnreachable
from darkroom.worker.gateway.gateway import Gateway
from darkroom.worker.observe.http_metrics import HttpMetrics
from darkroom.worker.sources.broker import BrokerUnreachable

UNKNOWN = float("nan")


class GatewayMetrics:
    """Registry of a gateway. What the database or the broker cannot say is NaN, and their gauge of reachability 0."""

    def __init__(self, http: HttpMetrics) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(http)
        self._live = self._gauge("jobs_live", "Jobs of all gateways that have not ended")
        self._queued = self._gauge("jobs_queued", "Jobs at the broker, those that workers have among them")
        self._unsent = self._gauge("jobs_unsent", "Jobs that are stored and not at the broker")
        self._work = Gauge(
            "darkroom_gateway_work", "Jobs at the broker by the priority and the model of their stream",
            ("priority", "model"), registry=self._registry,
        )  # fmt: skip
        self._workers = self._gauge("workers", "Workers that have announced themselves lately")
        self._database = self._gauge("database_up", "1 if the database can be reached")
        self._broker = self._gauge("broker_up", "1 if the broker can be reached")

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(f"darkroom_gateway_{name}", about, registry=self._registry)

    async def text(self, gateway: Gateway) -> bytes:
        """Return all metrics in Prometheus' text format, those of the fleet read now."""
        try:
            self._live.set(await gateway.records.num_live(is_probe=True))
            self._unsent.set(await gateway.records.num_unsent())
            self._database.set(1)
        except DatabaseUnreachable:
            self._live.set(UNKNOWN)
            self._unsent.set(UNKNOWN)
            self._database.set(0)
        self._work.clear()
        try:
            depths = await gateway.producer.depths()
            for depth in depths:
                self._work.labels(depth.priority, depth.model).set(depth.num_jobs)
            self._queued.set(sum(depth.num_jobs for depth in depths))
            self._broker.set(1)
        except BrokerUnreachable:
            self._queued.set(UNKNOWN)
            self._broker.set(0)
        self._workers.set(await gateway.fleet.num_workers())
        return generate_latest(self._registry)
