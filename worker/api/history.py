"""GET /metrics/history: figures of the last day, for the plots of the operator's page."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request

from darkroom.worker.api.declared import refusals
from darkroom.worker.api.replies.history import MetricsHistory
from darkroom.worker.api.results import check_operator, services_of

router = APIRouter(tags=["worker"])

DIGITS: Final = 7  # of a float32


@router.get(
    "/metrics/history",
    operation_id="get_metrics_history",
    response_model=None,
    responses={200: {"model": MetricsHistory}, **refusals(401, 403, 422, 429)},
)
async def metrics_history(
    request: Request,
    hours: Annotated[float, Query(gt=0, le=24, description="How far back")] = 24.0,
    points: Annotated[int, Query(ge=1, le=1440, description="Number of equal intervals")] = 240,
) -> dict[str, Any]:
    """Return chosen metrics of the last hours, one number for each interval. For an operator.

    The worker samples itself every 20 s and keeps a day in memory; a start begins anew. A gauge has its highest value
    in an interval, free memory its lowest, a counter its increase; null where there is no sample.
    """
    check_operator(request)
    page = await asyncio.to_thread(services_of(request).observation.history.page, hours * 3600, points)
    return {
        "ends_at_ms": int(page.ends_at * 1000),
        "interval_seconds": page.interval_seconds,
        "series": [
            {
                "name": series.name,
                "labels": dict(series.labels),
                "is_counter": series.is_counter,
                "values": [None if value is None else float(f"{value:.{DIGITS}g}") for value in series.values],
            }
            for series in page.series
        ],
    }
