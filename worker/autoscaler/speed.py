"""Speed of the machine in work per second, from the start-up benchmark's report. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from darkroom.contract.graph.cost import UNIT_COST
from darkroom.worker.json.values import JsonObject
from darkroom.worker.settings.workload import Workload

ASSUMED_SPEED = 20.0  # an image of 512x512 in 5 s: a small GPU's, so that the autoscaler sends little at first


def measured_speed(report: Mapping[str, Any], workload: Workload) -> float:
    """Return the costs per second of all engines that serve together; 0 where the report has no measurement."""
    if workload is Workload.COMPUTED:
        return _positive(report, "workload_per_second")
    engines = [engine for engine in report.get("engines", ()) if engine["serves"]] or [report]
    pictures_per_second = sum(map(_images_per_second, engines))
    return pictures_per_second * (UNIT_COST if workload is Workload.STATIC else 1.0)


def _images_per_second(engine: JsonObject) -> float:
    """Return the images per second of the requested workload.

    Where a CPU ran a smaller one, its images are not comparable, so they are 512x512 ones of 20 steps.
    """
    if engine.get("shrunk"):
        return _positive(engine, "workload_per_second") / UNIT_COST
    seconds = _positive(engine, "seconds_per_picture")
    return 1 / seconds if seconds else 0.0


def assumed_speed(workload: Workload) -> float:
    """Return the speed to report without a measurement, in this worker's unit."""
    return ASSUMED_SPEED / UNIT_COST if workload is Workload.ONE else ASSUMED_SPEED


def _positive(report: JsonObject, name: str) -> float:
    """Return a figure of a report; 0 where there is none above it."""
    value = report.get(name)
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0
