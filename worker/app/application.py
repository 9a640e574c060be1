"""Application factory `create_app()`: routers and error handlers around the services. No logic."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from darkroom.worker.api import (
    batch,
    benchmark,
    convert,
    deliveries,
    documentation,
    form,
    generate,
    health,
    history,
    interface,
    interface_keys,
    job_list,
    jobs,
    model_hint,
    models,
    operating,
    own_pages,
    plan,
    socket_stream,
    stored_workflows,
    stream,
    webhooks,
    worker_info,
)
from darkroom.worker.api.access_log import AccessLog
from darkroom.worker.api.body_sizes import SmallBodies, checked_routes
from darkroom.worker.api.document_cache import DocumentCache
from darkroom.worker.api.packed_bodies import PackedBodies
from darkroom.worker.api.page_headers import PageHeaders
from darkroom.worker.api.request_metrics import RequestMetrics
from darkroom.worker.api.request_tracing import RequestTracing
from darkroom.worker.api.results import refuse
from darkroom.worker.api.schemas import problem_of
from darkroom.worker.api.services import Services
from darkroom.worker.api.sync_waiters import SyncWaiters
from darkroom.worker.app.integrations import dialect_routers
from darkroom.worker.errors import MethodNotAllowed, RequestRejected, RouteNotFound, WorkerError
from darkroom.worker.jobs.envelope import refusal

MAX_PATH_LENGTH = 200
PARTS = (  # the first ones are found first, those of the dialects last
    generate,
    batch,
    stored_workflows,
    convert,
    form,
    plan,
    stream,
    socket_stream,
    jobs,
    job_list,
    deliveries,
    health,
    history,
    documentation,
    benchmark,
    webhooks,
    model_hint,
    models,
    operating,
    own_pages,
    interface_keys,
    interface,
    worker_info,
)

log = structlog.get_logger("api")


def create_app(services: Services, lifespan: AbstractAsyncContextManager[None] | None = None) -> FastAPI:
    """Build the application. `lifespan` is entered when the server starts and left when it stops."""

    def enter(_app: FastAPI) -> Any:
        return lifespan

    app = FastAPI(openapi_url=None, lifespan=None if lifespan is None else enter)
    app.state.services = services
    app.state.sync_waiters = SyncWaiters(services.jobs.pipeline, services.jobs.limits.sync_grace_seconds)
    app.state.openapi = DocumentCache()
    app.state.openapi_of_callers = DocumentCache()  # with the stored workflows
    app.add_middleware(SmallBodies, limits=services.requests.bodies.structure, routes=app.router.routes)
    app.add_middleware(PackedBodies)
    app.add_middleware(PageHeaders)
    if services.observation.has_access_log:
        app.add_middleware(AccessLog)
    app.add_middleware(RequestTracing, tracer=services.observation.tracer)
    app.add_middleware(RequestMetrics, metrics=services.requests.http_metrics)
    for router in (*(part.router for part in PARTS), *dialect_routers()):
        # Not `include_router`, which analyses every route and the forms of its replies anew for the first request.
        app.router.routes.extend(router.routes)
    if services.platform_routes is not None:
        services.platform_routes.attach(app, services)
    checked_routes(app.router.routes)

    @app.exception_handler(WorkerError)
    async def _known(_request: Request, error: WorkerError) -> Response:
        return refuse(error, str(error.fields.get("request_id", "")))

    @app.exception_handler(RequestValidationError)
    async def _malformed(_request: Request, error: RequestValidationError) -> Response:
        return refuse(RequestRejected([problem_of(entry) for entry in error.errors()]))

    @app.exception_handler(404)
    async def _no_such_route(request: Request, _error: Exception) -> Response:
        return refuse(RouteNotFound(f"No route {request.url.path[:MAX_PATH_LENGTH]}; /docs lists all"))

    @app.exception_handler(405)
    async def _no_such_method(request: Request, error: HTTPException) -> Response:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"method: not allowed on this route; got {request.method}, expected {allowed}"
        response = refuse(MethodNotAllowed(message, allowed=allowed.split(", ")))
        response.headers["Allow"] = allowed
        return response

    @app.exception_handler(Exception)
    async def _unknown(request: Request, error: Exception) -> JSONResponse:
        log.error("request failed", path=request.url.path, exc_info=error)
        message = "The worker failed; its log has the reason"
        return JSONResponse(refusal("", message, {"code": "internal_error", "message": message}), status_code=500)

    return app
