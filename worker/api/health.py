"""GET /health, /ready, /live, /metrics, /modifiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from darkroom.worker.api.declared import PLAIN_TEXT, refusals
from darkroom.worker.api.replies.health import Health, Liveness, Readiness
from darkroom.worker.api.replies.worker import ModifierEntry
from darkroom.worker.api.results import check_operator, services_of
from darkroom.worker.api.services import EngineServices, FileServices, Services
from darkroom.worker.doctor.check import Check, failed, warning
from darkroom.worker.engines.choices import choices_in
from darkroom.worker.engines.health import engine_as_json, fallback_as_json, find_worker_problems
from darkroom.worker.engines.watch import EngineState
from darkroom.worker.errors import EngineUnreachable
from darkroom.worker.models.demo_model import suited_example
from darkroom.worker.prompts.modifier_defaults import checkpoints_of, find_all_defaults
from darkroom.worker.version import version

router = APIRouter(tags=["worker"])

PACKS_SECONDS = 5.0


@router.head("/live", include_in_schema=False)
@router.get("/live", operation_id="get_live", response_model=Liveness)
async def live() -> dict[str, str]:
    """Liveness probe: reply 200 while the process responds."""
    return {"status": "alive"}


@router.head("/ready", include_in_schema=False)
@router.get(
    "/ready",
    operation_id="get_ready",
    response_model=Readiness,
    responses=refusals(401, 403) | {503: {"model": Readiness, "description": "Not ready, with the reason"}},
)
async def ready(request: Request, verbose: str | None = None) -> JSONResponse:
    """Readiness probe: reply 200 when the worker accepts and runs jobs.

    `verbose` (any value) adds every check of `darkroom doctor`; for operators.
    """
    services = services_of(request)
    if verbose is None:
        return _readiness(services, None)
    check_operator(request)
    checks = [
        *await services.observation.examine(),
        *await _broken_pack_checks(services.engines),
        *_manifest_checks(services.files),
    ]
    return _readiness(services, [check.as_json() for check in checks])


def _readiness(services: Services, checks: list[dict[str, str]] | None) -> JSONResponse:
    more: dict[str, Any] = {} if checks is None else {"checks": checks}
    if services.jobs.intake is not None:
        more["broker"] = services.jobs.intake.report()
    if (database := services.jobs.store.database.report()) is not None:
        more["database"] = database
    low = [floor.name for floor in services.engines.floors() if floor.is_reached]
    problem = services.jobs.store.database.problem
    fault = services.engines.fleet.problem()
    if services.jobs.gate.is_open and services.engines.pool.clients_serving and not low and not problem and not fault:
        return JSONResponse({"status": "ready", **more})
    reason = services.jobs.gate.reason or problem or (f"Too little {low[0]} is left" if low else "")
    engine = "" if services.engines.pool.clients_serving else "No engine is up"
    reason = ": ".join(filter(None, (reason or engine, fault)))
    body = {"status": "not ready", "reason": reason, **more}
    return JSONResponse(body, status_code=503, headers={"Retry-After": "5"})


async def _broken_pack_checks(engines: EngineServices) -> list[Check]:
    """Return a failed check for each pack of custom nodes that an engine of ours could not load."""
    checks = []
    for engine in engines.pool.clients_serving:
        if engine.has_check:
            try:
                _, answer = await engine.calls.ask("GET", "/api/v1/nodes", timeout_seconds=PACKS_SECONDS)
            except EngineUnreachable:
                continue
            for pack in _broken_packs(answer):
                remedy = "`darkroom nodes check` shows the trace; `darkroom nodes install` what it needs"
                checks.append(failed(f"pack {pack['name']}", str(pack["error"]).splitlines()[0][:300], remedy))
    return checks


def _manifest_checks(files: FileServices) -> list[Check]:
    """Return a warning for each model file and pack that is not as `models.toml` and `packs.toml` have it."""
    remedy = "`darkroom models fetch` brings files of models.toml, `darkroom nodes sync` packs of packs.toml"
    return [warning(name, state, remedy) for name, state in files.manifest_state.differences()]


def _broken_packs(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    packs = answer.get("packs")
    return [pack for pack in packs if pack.get("error")] if isinstance(packs, list) else []


@router.head("/health", include_in_schema=False)
@router.get(
    "/health",
    operation_id="get_health",
    response_model=Health,
    responses={503: {"model": Health, "description": "Unhealthy: `problems` has the reasons"}},
)
async def health(request: Request) -> JSONResponse:
    """Reply 503 when the worker makes no progress and should be replaced; `problems` lists the reasons."""
    services = services_of(request)
    engines = services.engines.fleet.reports()
    floors = services.engines.floors()
    problems = find_worker_problems(
        engines, floors, services.jobs.pipeline.check_integrity(), services.engines.supervision.silence_seconds
    )
    backends = [engine_as_json(engine) for engine in engines]
    num_up = sum(1 for backend in backends if backend["healthy"])
    failed = [engine for engine in engines if engine.state is EngineState.FAILED]
    loss = next((engine.last_loss for engine in failed), None)
    body: dict[str, Any] = {
        "status": "unhealthy" if problems else "healthy" if num_up == len(backends) else "degraded",
        "version": version(),
        "cache_type": "sqlite",
        "queues": services.jobs.queue_info.sizes(),
        "backends_healthy": f"{num_up}/{len(backends)}",
        "gpu": {"unrecoverable": bool(failed), "reason": None if loss is None else loss.sentence},
        "backends": backends,
        "ready": services.jobs.gate.is_open and num_up > 0,
        "restarts": sum(sum(engine.restarts.values()) for engine in engines),
        **{floor.name: floor.as_json() for floor in floors},
    }
    if services.jobs.intake is not None:
        body["broker"] = services.jobs.intake.report()
    if (database := services.jobs.store.database.report()) is not None:
        body["database"] = database
    if (manifest := services.files.manifest_state.report()) is not None:
        body["manifest"] = manifest
    if services.engines.fallback is not None:
        body["fallback"] = fallback_as_json(services.engines.fallback.report(), services.engines.fallback.num_starts)
    if problems:
        body["problems"] = problems
    return JSONResponse(body, status_code=503 if problems else 200)


@router.get(
    "/metrics",
    operation_id="get_metrics",
    response_class=Response,
    responses=PLAIN_TEXT | refusals(401, 403),
)
async def metrics(request: Request) -> Response:
    """Return Prometheus metrics; for operators only where METRICS_OPEN is off."""
    services = services_of(request)
    if not services.requests.metrics_are_open:
        check_operator(request)
    await services.observation.scrape.read()
    services.observation.metrics.qualified(services.engines.qualification.report, services.engines.qualification.phases)
    is_ready = services.jobs.gate.is_open and bool(services.engines.pool.clients_serving)
    return Response(services.observation.metrics.text(is_ready=is_ready), media_type="text/plain; version=0.0.4")


@router.get(
    "/modifiers",
    operation_id="list_modifiers",
    response_model=None,
    responses={200: {"model": list[ModifierEntry]}},
)
async def modifiers(request: Request) -> list[dict[str, Any]]:
    """Return every modifier with the JSON schema of its modifications and an example.

    The schemas list the files and samplers that the engine has, once it is up, and the defaults for the checkpoint
    that draws where none is named. A file of the modifiers' folder that cannot be used has `error` instead.
    """
    services = services_of(request)
    engine, registry = services.engines.pool.any_client, services.requests.modifiers
    try:
        object_info = await engine.object_info()
        checkpoints = checkpoints_of(object_info)
        defaults = await find_all_defaults(engine, registry, checkpoints, registry.names())
    except EngineUnreachable:
        return registry.describe()
    families = {name: item.family for name, item in defaults.items() if item.family is not None}
    shown = registry.describe(choices_in(object_info), families)
    for item in shown:
        if item.get("example"):
            item["example"] = suited_example(item["example"], checkpoints)
        for field, value in defaults[item["name"]].fields.items() if item["name"] in defaults else ():
            if field in item["schema"]["properties"]:
                item["schema"]["properties"][field]["default"] = value
    return shown
