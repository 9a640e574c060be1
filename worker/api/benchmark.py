"""GET and POST /benchmark: the last benchmark's report, and a new run on demand."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from darkroom.worker.api.body_sizes import takes_little
from darkroom.worker.api.declared import refusals
from darkroom.worker.api.replies.worker import Benchmark
from darkroom.worker.api.results import check_operator, refuse, services_of
from darkroom.worker.errors import WorkerError

router = APIRouter(tags=["worker"])


@router.get("/benchmark", operation_id="get_benchmark", response_model=None, responses={200: {"model": Benchmark}})
async def benchmark(request: Request) -> dict[str, Any]:
    """Return the last benchmark with its verdict, the warm-up's entries and the duration of each start-up phase."""
    return services_of(request).engines.qualification.as_json()


@router.post(
    "/benchmark",
    operation_id="run_benchmark",
    response_model=Benchmark,
    responses=refusals(401, 403, 503),
)
@takes_little
async def run_benchmark(request: Request) -> Response:
    """Run the benchmark now and return its report; jobs wait meanwhile. For an operator."""
    services = services_of(request)
    try:
        check_operator(request)
        return JSONResponse(await services.engines.qualification.rerun())
    except WorkerError as error:
        return refuse(error)
