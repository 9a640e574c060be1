"""Metrics of the front's HTTP requests: their number by route and code, and their duration."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Counter, Histogram, Metric
from prometheus_client.registry import Collector

SECONDS = (0.025, 0.1, 0.5, 2.5, 10, 60, 300)
NO_ROUTE = "none"
OTHER_METHOD = "other"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CLASSES = ("2xx", "3xx", "4xx", "5xx")


class HttpMetrics(Collector):
    """Metrics of requests by their route's template, which bounds the labels. Durations are by the code's class.

    The series of a route appear with its first request: a worker has some two hundred routes, and is asked for ten of
    them. Replies by class of status are there from the start, for alerts: `increase()` misses the first event of a
    series that appears with it.
    """

    def __init__(self) -> None:
        self._replies = Counter("darkroom_http_replies", "Replies, by class of status", ["code"], registry=None)
        for name in CLASSES:
            self._replies.labels(name)
        self._requests = Counter(
            "darkroom_http_requests", "Requests, by route and status", ["method", "route", "code"], registry=None
        )
        self._seconds = Histogram(
            "darkroom_http_request_seconds",
            "Time from a request's arrival to the end of its reply, by route and class of status",
            ["method", "route", "code"],
            buckets=SECONDS,
            registry=None,
        )

    def describe(self) -> Iterator[Metric]:
        for metric in (self._replies, self._requests, self._seconds):
            yield from metric.describe()

    def collect(self) -> Iterator[Metric]:
        for metric in (self._replies, self._requests, self._seconds):
            yield from metric.collect()

    def answered(self, method: str, route: str | None, code: int, seconds: float) -> None:
        """Count a request. `route` None: the path is no route's. Unknown methods count as one."""
        shown = method if method in METHODS else OTHER_METHOD
        self._replies.labels(_class_of(code)).inc()
        self._requests.labels(shown, route or NO_ROUTE, str(code)).inc()
        self._seconds.labels(shown, route or NO_ROUTE, _class_of(code)).observe(seconds)


def _class_of(code: int) -> str:
    return CLASSES[min(max(code // 100, 2), 5) - 2]
