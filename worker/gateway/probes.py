"""Probes, metrics and modifiers of a gateway: routes that need no caller, and count none."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from darkroom.worker.api.declared import PLAIN_TEXT, refusals
from darkroom.worker.api.replies.health import Readiness
from darkroom.worker.api.replies.worker import ModifierEntry
from darkroom.worker.api.results import check_operator
from darkroom.worker.gateway.routes import services_of
from darkroom.worker.gateway.scale import Work, read_work

router = APIRouter(tags=["worker"])


@router.get(
    "/metrics", operation_id="get_metrics", response_class=Response,
    responses=PLAIN_TEXT | refusals(401, 403),
)  # fmt: skip
async def metrics(request: Request) -> Response:
    """Return Prometheus metrics of this gateway and of the fleet; for operators only where METRICS_OPEN is off."""
    services = services_of(request)
    if not services.requests.metrics_are_open:
        check_operator(request)
    return Response(await services.metrics.text(services.gateway), media_type="text/plain; version=0.0.4")


@router.get(
    "/api/v1/scale", operation_id="get_scale", response_model=Work,
    responses=refusals(401, 403, 503),
)  # fmt: skip
async def scale(request: Request) -> Work:
    """Return the work that is there for workers, for autoscalers; for operators only where METRICS_OPEN is off."""
    services = services_of(request)
    if not services.requests.metrics_are_open:
        check_operator(request)
    return await read_work(services.gateway)


@router.get("/live", operation_id="get_live")
async def live() -> dict[str, str]:
    """Liveness probe: reply 200 while the process responds."""
    return {"status": "alive"}


@router.get(
    "/ready", operation_id="get_ready", response_model=Readiness,
    responses={503: {"model": Readiness, "description": "Not ready, with the reason"}},
)  # fmt: skip
async def ready(request: Request) -> JSONResponse:
    """Readiness probe: reply 200 when jobs are stored and sent."""
    problems = await services_of(request).gateway.problems()
    if not problems:
        return JSONResponse({"status": "ready"})
    body = {"status": "not ready", "reason": "; ".join(problems)}
    return JSONResponse(body, status_code=503, headers={"Retry-After": "5"})


@router.get("/modifiers", operation_id="list_modifiers", responses={200: {"model": list[ModifierEntry]}})
async def modifiers(request: Request) -> list[dict[str, Any]]:
    """Return every modifier with the JSON schema of its modifications."""
    return services_of(request).requests.modifiers.describe()
