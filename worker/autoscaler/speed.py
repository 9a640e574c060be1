"""How much work the machine does in a second, from the start-up benchmark's report. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.jobs.cost import UNIT_COST, UNIT_PIXELS, UNIT_STEPS, Workload


def speed_of(report: Mapping[str, Any], workload: Workload, assumed_speed: float) -> float:
    """Costs per second, above 0. A report without a measurement gives `assumed_speed` (of computed costs)."""
    seconds = report.get("seconds_per_picture")
    if not isinstance(seconds, int | float) or seconds <= 0:
        pictures_per_second = assumed_speed / UNIT_COST
        return {Workload.COMPUTED: assumed_speed, Workload.STATIC: assumed_speed, Workload.ONE: pictures_per_second}[
            workload
        ]
    if workload is not Workload.COMPUTED:
        return (UNIT_COST if workload is Workload.STATIC else 1.0) / seconds
    return _cost_of_run(report) / seconds


def _cost_of_run(report: Mapping[str, Any]) -> float:
    """Of the picture that was measured: guided, so two passes a step, as in the unit."""
    cost = report.get("cost")
    if isinstance(cost, int | float) and cost > 0:
        return float(cost)
    run = report.get("settings") or {}
    try:
        share = run["width_px"] * run["height_px"] / UNIT_PIXELS
        return float(UNIT_COST * share * run["num_steps"] / UNIT_STEPS) or UNIT_COST
    except (KeyError, TypeError):
        return UNIT_COST
