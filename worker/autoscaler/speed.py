"""How much work the machine does in a second, from the start-up benchmark's report. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.jobs.cost import UNIT_COST, Workload


def measured_speed(report: Mapping[str, Any], workload: Workload) -> float:
    """Costs per second of all engines that serve together; 0 where the report has no measurement."""
    if workload is Workload.COMPUTED:
        return _positive(report, "workload_per_second")
    engines = [engine for engine in report.get("engines", ()) if engine["serves"]] or [report]
    pictures_per_second = sum(map(_pictures_per_second, engines))
    return pictures_per_second * (UNIT_COST if workload is Workload.STATIC else 1.0)


def _pictures_per_second(engine: Mapping[str, Any]) -> float:
    """Of what was to be run: where a CPU ran less, its pictures say nothing, so 512x512 ones of 20 steps."""
    if engine.get("shrunk"):
        return _positive(engine, "workload_per_second") / UNIT_COST
    seconds = _positive(engine, "seconds_per_picture")
    return 1 / seconds if seconds else 0.0


def assumed_speed(computed: float, workload: Workload) -> float:
    """What is told where nothing was measured: `computed`, in costs that are computed, as this worker counts them."""
    return computed / UNIT_COST if workload is Workload.ONE else computed


def _positive(report: Mapping[str, Any], name: str) -> float:
    """A figure of a report; 0 where there is none above it."""
    value = report.get(name)
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0
