"""How much work the machine does in a second, from the start-up benchmark's report. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.jobs.cost import UNIT_COST, Workload


def speed_of(report: Mapping[str, Any], workload: Workload, assumed_speed: float) -> float:
    """Costs per second of all engines, above 0. A report without a measurement gives `assumed_speed`."""
    engines = report.get("engines") or [report]
    pictures_per_second = sum(
        1 / seconds for engine in engines if (seconds := _positive(engine, "seconds_per_picture"))
    )
    if workload is Workload.COMPUTED:
        return _positive(report, "workload_per_second") or assumed_speed
    if not pictures_per_second:
        return assumed_speed if workload is Workload.STATIC else assumed_speed / UNIT_COST
    return pictures_per_second * (UNIT_COST if workload is Workload.STATIC else 1.0)


def _positive(report: Mapping[str, Any], name: str) -> float:
    """A figure of a report; 0 where there is none above it."""
    value = report.get(name)
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0
