"""GET /worker and /engines: what this worker draws with; the state and memory of its engines, for operators."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

from fastapi import APIRouter, Request

from darkroom.worker.api.declared import refusals
from darkroom.worker.api.replies.worker import EngineEntry, WorkerInfo
from darkroom.worker.api.results import check_caller, check_operator, services_of
from darkroom.worker.api.services import EngineServices
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.health import engine_as_json
from darkroom.worker.errors import EngineUnreachable, Forbidden, Unauthorized
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.jobs.wait_estimate import RunClock
from darkroom.worker.models.demo_model import DEMO_CHECKPOINT
from darkroom.worker.prompts.modifier_defaults import checkpoints_of
from darkroom.worker.qualification.state import Qualification
from darkroom.worker.settings.api_keys import Scope
from darkroom.worker.version import version

router = APIRouter(tags=["worker"])

MEMORY_SECONDS: Final = 5.0
MEASURED: Final = ("verdict", "its_per_second", "seconds_per_picture", "width_px", "height_px", "steps", "model")


@router.get("/worker", operation_id="get_worker", response_model=None, responses={200: {"model": WorkerInfo}})
async def worker(request: Request) -> dict[str, Any]:
    """Return the devices, checkpoints and measured speed of this worker, and what the caller may do here."""
    services = services_of(request)
    caller = _caller(request)
    checkpoints = await _checkpoints(services.engines)
    return {
        "version": version(),
        "is_ready": services.jobs.gate.is_open and bool(services.engines.pool.clients_serving),
        "devices": [device for engine in services.engines.pool.clients_serving for device in await _devices(engine)],
        "checkpoints": checkpoints,
        "is_demo_only": [item["name"] for item in checkpoints] == [DEMO_CHECKPOINT],
        "benchmark": _measured(services.engines.qualification),
        "jobs": _pace(services.jobs.run_clock),
        "price_per_hour": services.engines.price_per_hour or None,
        "caller": {
            "key_name": "" if caller is None else caller.key_name,
            "scopes": [] if caller is None else sorted(scope.value for scope in caller.scopes),
        },
    }


@router.get(
    "/engines",
    operation_id="list_engines",
    response_model=None,
    responses={200: {"model": list[EngineEntry]}, **refusals(401, 403)},
)
async def engines(request: Request) -> list[dict[str, Any]]:
    """Return the state of every engine and the memory of those that answer. For an operator.

    `memory` is null for a foreign engine and for one that does not answer.
    """
    check_operator(request)
    services = services_of(request)
    clients = {client.url: client for client in services.engines.pool.clients_serving}
    return [
        {**engine_as_json(report), "memory": await _memory(clients.get(report.url))}
        for report in services.engines.fleet.reports()
    ]


def _caller(request: Request) -> Identity | None:
    """Return the caller, None for one without a valid key where one is needed."""
    with contextlib.suppress(Unauthorized, Forbidden):
        return check_caller(request, needs=Scope.SUBMIT)
    with contextlib.suppress(Unauthorized, Forbidden):
        return check_caller(request, needs=Scope.READ)
    return None


async def _devices(engine: EngineClient) -> list[dict[str, Any]]:
    try:
        found = (await engine.calls.system_stats()).get("devices")
    except EngineUnreachable:
        return []
    listed = [device for device in found if isinstance(device, Mapping)] if isinstance(found, list) else []
    return [{"name": str(device.get("name", "unknown")), "memory_bytes": device.get("vram_total")} for device in listed]


async def _checkpoints(engines: EngineServices) -> list[dict[str, Any]]:
    engine = engines.pool.any_client
    with contextlib.suppress(EngineUnreachable):
        if engine.has_check:
            found = await engine.families.checkpoints()
            return [{"name": item.name, "family": item.family or None, "size_bytes": item.size_bytes} for item in found]
        names = checkpoints_of(await engine.object_info())
        return [{"name": name, "family": None, "size_bytes": None} for name in names]
    return []


def _measured(qualification: Qualification) -> dict[str, Any]:
    report = qualification.as_json()
    return {name: report.get(name) for name in MEASURED}


def _pace(clock: RunClock) -> dict[str, Any]:
    """Return the pace of the last jobs, those from before the last start among them."""
    seconds, runs = clock.seconds_per_file, [run for run in clock.known_runs if run.num_files > 0]
    return {"num_jobs": len(runs), "seconds_per_file": None if seconds is None else round(seconds, 3)}


async def _memory(engine: EngineClient | None) -> dict[str, Any] | None:
    if engine is None or not engine.has_check:
        return None
    try:
        status, body = await engine.calls.ask("GET", "/api/v1/memory", timeout_seconds=MEMORY_SECONDS)
    except EngineUnreachable:
        return None
    return body if status == 200 else None
