"""Qualification: fitness of this worker, for `GET /benchmark`, the metrics and the autoscaler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from darkroom.worker.qualification.qualifier import Qualified
from darkroom.worker.qualification.verdict import BenchmarkReport, Verdict

BAD = (Verdict.FAILED, Verdict.FAULTY, Verdict.THROTTLED, Verdict.SLOW, Verdict.UNSTABLE)
"""Verdicts, the worst first."""

VERDICTS = tuple(verdict.value for verdict in Verdict)


@dataclass(slots=True)
class Qualification:
    """Fitness of the worker. `error` is why the worker is closed, and None again as soon as a later try succeeds.

    `benchmark_now` runs the benchmark. Raises NotReady.
    """

    benchmark_now: Callable[[], Awaitable[None]]
    report: dict[str, Any] = field(default_factory=lambda: {"verdict": Verdict.PENDING.value})
    error: str | None = None
    is_running: bool = False
    num_tries: int = 0
    next_try_in_seconds: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        return Verdict(self.report["verdict"])

    @property
    def workload_per_second(self) -> float | None:
        """Workload per second of all engines that serve together; 100 is one 512x512 image of 20 steps.

        None before there is a figure, never 0.
        """
        value = self.report.get("workload_per_second")
        return float(value) if value else None

    def begin_round(self) -> None:
        self.is_running = True

    def end_round(self) -> None:
        self.is_running = False

    def begin_try(self) -> None:
        self.num_tries += 1

    def wait(self, seconds: float | None) -> None:
        """Record the time until the next try; None: none is planned."""
        self.next_try_in_seconds = seconds

    def found(self, report: dict[str, Any], phases: Mapping[str, float]) -> None:
        """Replace the report by the last round's."""
        self.report, self.phases = report, phases

    def opened(self, phases: Mapping[str, float]) -> None:
        """Record that the worker takes jobs."""
        self.error, self.phases = None, phases

    def closed(self, reason: str) -> None:
        """Record why the worker takes no jobs."""
        self.error = reason

    def as_json(self) -> dict[str, object]:
        return {
            **self.report,
            "error": self.error,
            "is_running": self.is_running,
            "num_tries": self.num_tries,
            "next_try_in_seconds": self.next_try_in_seconds,
            "phases": dict(self.phases),
        }

    async def rerun(self) -> dict[str, object]:
        """Run the benchmark now, regardless of an earlier result; concurrent calls share a run. Raises NotReady."""
        await self.benchmark_now()
        return self.as_json()


def report_of(found: Mapping[str, Qualified], serving: Collection[str]) -> dict[str, object]:
    """Merge the reports of the engines, by their addresses, into one for the worker.

    With a single engine it is that engine's. With several it is that of the worst that serves, with the speed of all
    that do. Where none serves, all are merged the same way.
    """
    counted = [item for url, item in found.items() if url in serving] or list(found.values())
    worst = min(counted, key=lambda item: rank(item.report))
    body = {
        **worst.report.model_dump(mode="json"),
        "is_reused": all(item.is_reused for item in counted),
        "measured_at": min(item.measured_at for item in counted),
    }
    if len(found) > 1:
        rates = [item.report.workload_per_second for item in counted]
        known = [rate for rate in rates if rate is not None]
        body["workload_per_second"] = sum(known) if known else None
        body["engines"] = [
            {"url": url, "serves": url in serving, **item.report.model_dump(mode="json")} for url, item in found.items()
        ]
    return body


def rank(report: BenchmarkReport) -> int:
    return BAD.index(report.verdict) if report.verdict in BAD else len(BAD)
