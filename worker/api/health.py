"""GET /health, /ready, /live, /metrics, /modifiers and /."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from worker.api.results import services_of

router = APIRouter()

_INDEX = """<!doctype html><meta charset="utf-8"><title>Darkroom</title>
<h1>Darkroom</h1><p>Images from node graphs. <a href="docs">The API</a>, <a href="health">health</a>,
<a href="modifiers">modifiers</a>, <a href="benchmark">benchmark</a>, <a href="queue-info">queue</a>.</p>"""


@router.get("/", response_class=HTMLResponse, include_in_schema=False)
async def index() -> str:
    return _INDEX


@router.get("/live")
async def live() -> dict[str, str]:
    """The process answers."""
    return {"status": "alive"}


@router.get("/ready")
async def ready(request: Request) -> JSONResponse:
    """200 when a job sent now would be accepted and run."""
    services = services_of(request)
    is_ready = services.gate.is_open and any(is_up for _, is_up, _ in services.pool.states)
    if is_ready:
        return JSONResponse({"status": "ready"})
    reason = services.gate.reason or "No engine is up"
    return JSONResponse({"status": "not ready", "reason": reason}, status_code=503, headers={"Retry-After": "5"})


@router.get("/health")
async def health(request: Request) -> JSONResponse:
    """503 when an engine is down or the front's own state is wrong."""
    services = services_of(request)
    backends = [
        {"url": url, "healthy": is_up, "prompts": num_prompts} for url, is_up, num_prompts in services.pool.states
    ]
    wrong = services.pipeline.check_integrity()
    num_up = sum(1 for backend in backends if backend["healthy"])
    is_healthy = num_up == len(backends) and not wrong
    body: dict[str, Any] = {
        "status": "healthy" if is_healthy else "unhealthy",
        "cache_type": "sqlite",
        "queues": services.queue_info.sizes(),
        "backends_healthy": f"{num_up}/{len(backends)}",
        "gpu": {"unrecoverable": False, "reason": None},
        "backends": backends,
        "ready": services.gate.is_open,
    }
    if wrong:
        body["problems"] = wrong
    return JSONResponse(body, status_code=200 if is_healthy else 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    services = services_of(request)
    services.metrics.qualified(services.qualification.report, services.qualification.phases)
    return Response(services.metrics.text(is_ready=services.gate.is_open), media_type="text/plain; version=0.0.4")


@router.get("/modifiers")
async def modifiers(request: Request) -> list[dict[str, Any]]:
    """Every modifier with the JSON schema of its modifications."""
    return services_of(request).modifiers.describe()
