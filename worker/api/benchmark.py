"""GET and POST /benchmark: the last benchmark's report, and a new run on demand."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from worker.api.results import check_operator, refuse, services_of
from worker.errors import WorkerError

router = APIRouter()


@router.get("/benchmark")
async def benchmark(request: Request) -> dict[str, Any]:
    """Return the last benchmark with its verdict, the warm-up's entries and the duration of each start-up phase."""
    return services_of(request).qualification.as_json()


@router.post("/benchmark", response_model=None)
async def run_benchmark(request: Request) -> Response:
    """Run the benchmark now and return its report; jobs wait meanwhile. For an operator."""
    services = services_of(request)
    try:
        check_operator(request)
        return JSONResponse(await services.qualification.rerun())
    except WorkerError as error:
        return refuse(error)
