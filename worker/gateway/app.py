"""Application of a gateway: its routes and the error handlers of the front."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from darkroom.worker.api.access_log import AccessLog
from darkroom.worker.api.body_sizes import SmallBodies, checked_routes
from darkroom.worker.api.documentation import docs, part_of_docs
from darkroom.worker.api.packed_bodies import PackedBodies
from darkroom.worker.api.page_headers import PageHeaders
from darkroom.worker.api.request_metrics import RequestMetrics
from darkroom.worker.api.results import refuse
from darkroom.worker.api.schemas import problem_of
from darkroom.worker.errors import RequestRejected, RouteNotFound, WorkerError
from darkroom.worker.gateway import probes, workflow_routes
from darkroom.worker.gateway import worker_routes as workers
from darkroom.worker.gateway.counted import count_request
from darkroom.worker.gateway.routes import GatewayServices, has_envelope, router
from darkroom.worker.jobs.envelope import refusal
from darkroom.worker.version import version

MAX_PATH_LENGTH = 200

log = structlog.get_logger("gateway")


def create_gateway_app(services: GatewayServices, *, has_access_log: bool = False) -> FastAPI:
    """Build the application, which opens the gateway's connections when the server starts."""

    @asynccontextmanager
    async def enter(_app: FastAPI) -> AsyncIterator[None]:
        async with services.gateway.lifespan():
            try:
                yield
            finally:
                await services.desk.close()

    app = FastAPI(title="Darkroom gateway", version=version(), lifespan=enter, docs_url=None, redoc_url=None)
    app.state.services = services
    routes = [
        *probes.router.routes,
        *router.routes,
        *workflow_routes.router.routes,
        *workers.router.routes,
        *workers.token_router.routes,
        *(route for dialect in services.dialects for route in dialect.routes),
    ]
    app.add_middleware(SmallBodies, limits=services.requests.bodies.structure, routes=routes)
    app.add_middleware(PackedBodies)
    app.add_middleware(PageHeaders)
    if has_access_log:
        app.add_middleware(AccessLog)
    app.add_middleware(RequestMetrics, metrics=services.requests.http_metrics)
    app.include_router(probes.router)
    app.include_router(workflow_routes.router)
    app.include_router(workers.router)
    app.include_router(workers.token_router)
    for counted in (router, *services.dialects):
        app.include_router(counted, dependencies=[Depends(count_request)])
    app.add_api_route("/docs", docs, include_in_schema=False)
    app.add_api_route("/docs/{name}", part_of_docs, include_in_schema=False)

    checked_routes(routes)

    @app.exception_handler(WorkerError)
    async def _known(request: Request, error: WorkerError) -> Response:
        return refuse(error, str(error.fields.get("request_id", "")), is_vast=has_envelope(request))

    @app.exception_handler(RequestValidationError)
    async def _malformed(_request: Request, error: RequestValidationError) -> Response:
        return refuse(RequestRejected([problem_of(entry) for entry in error.errors()]))

    @app.exception_handler(404)
    async def _no_such_route(request: Request, _error: Exception) -> Response:
        return refuse(RouteNotFound(f"No route {request.url.path[:MAX_PATH_LENGTH]}; /docs lists all"))

    @app.exception_handler(Exception)
    async def _unknown(request: Request, error: Exception) -> JSONResponse:
        log.error("request failed", path=request.url.path, exc_info=error)
        message = "The gateway failed; its log has the reason"
        body: dict[str, Any] = refusal("", message, {"code": "internal_error", "message": message})
        return JSONResponse(body, status_code=500)

    return app
