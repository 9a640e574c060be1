"""Metrics of the front's HTTP requests: their number by route and code, and their duration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import Counter, Histogram, Metric
from prometheus_client.registry import Collector

SECONDS = (0.005, 0.025, 0.1, 0.5, 1, 5, 15, 30, 60, 120, 300, 600)
NO_ROUTE = "none"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CLASSES = ("2xx", "3xx", "4xx", "5xx")


class HttpMetrics(Collector):
    """Metrics of requests by their route's template, which bounds the labels. Durations are by the code's class.

    The series that are expected, a thousand, are made when somebody asks for them, and not while the front starts.
    """

    def __init__(self) -> None:
        self._expected: list[tuple[str, str, int]] = []
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
        for method in ("GET", "POST"):
            self.expect(method, NO_ROUTE, (404, 405))

    def expect(self, method: str, route: str, codes: Iterable[int]) -> None:
        """Show the series of a route's codes from the first time on, at 0."""
        self._expected += [(method, route, code) for code in codes]

    def describe(self) -> Iterator[Metric]:
        yield from self._requests.describe()
        yield from self._seconds.describe()

    def collect(self) -> Iterator[Metric]:
        expected, self._expected = self._expected, []
        for method, route, code in expected:
            self._requests.labels(method, route, str(code))
            self._seconds.labels(method, route, _class_of(code))
        yield from self._requests.collect()
        yield from self._seconds.collect()

    def answered(self, method: str, route: str | None, code: int, seconds: float) -> None:
        """Count a request. `route` None: the path is no route's."""
        shown = method if method in METHODS else "other"
        self._requests.labels(shown, route or NO_ROUTE, str(code)).inc()
        self._seconds.labels(shown, route or NO_ROUTE, _class_of(code)).observe(seconds)


def _class_of(code: int) -> str:
    return CLASSES[min(max(code // 100, 2), 5) - 2]
