"""The server put together: routes, middlewares, and the tasks that live as long as it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from aiohttp import web
from aiohttp.typedefs import Middleware

from darkroom.engine.server import (
    assets,
    catalogue,
    device,
    empty_installation,
    families,
    files,
    front_end,
    jobs,
    memory_report,
    model_files,
    prompts,
    tuning,
    v1,
    web_folders,
)
from darkroom.engine.server.engine_start import EngineStart
from darkroom.engine.server.history import History
from darkroom.engine.server.origin import PageRules, allow_origin, refuse_other_pages
from darkroom.engine.server.packs import PackRoutes
from darkroom.engine.server.queue import PromptQueue
from darkroom.engine.server.run_figures import RunFigures
from darkroom.engine.server.runner import PromptRunner
from darkroom.engine.server.services import SERVICES, Services, services
from darkroom.engine.server.token import require_token
from darkroom.engine.server.websocket import Clients, serve_client
from darkroom.engine.settings import EngineSettings

API_PREFIX = "/api"
EVERYTHING_ELSE = "/{path:.*}"
EVERYTHING = "/{path}"  # how the router names it


def create_app(settings: EngineSettings, start: EngineStart) -> web.Application:
    """Build ComfyUI's HTTP and WebSocket API over the engine that `start` builds. Called on a running event loop.

    Raises FrontEndMissing where its web interface is asked for and is not there.
    """
    app = web.Application(client_max_size=round(settings.max_upload_mb * 1024 * 1024), middlewares=_guards(settings))
    queue, history, clients = PromptQueue(settings.max_concurrent_runs), History(), Clients()
    figures = RunFigures()
    runner = PromptRunner(queue, history, clients, start, figures)
    packs = PackRoutes(settings, queue, runner, clients)
    app[SERVICES] = Services(settings, start, queue, history, clients, runner, packs, figures)
    start.then(packs.load)
    routes = [
        web.get("/ws", get_ws),
        *prompts.ROUTES,
        *files.ROUTES,
        *catalogue.ROUTES,
        *(front_end.ROUTES if settings.front_end else empty_installation.ROUTES),
        *model_files.ROUTES,
        *web_folders.ROUTES,
    ]
    if settings.front_end:
        front_end.add_front_end(app, front_end.find_front_end(settings.front_end_root))
    app.add_routes(routes)
    app.add_routes(_below(API_PREFIX, routes))
    app.add_routes(
        [
            *v1.ROUTES,
            *jobs.ROUTES,
            *assets.ROUTES,
            *device.ROUTES,
            *families.ROUTES,
            *memory_report.ROUTES,
            *tuning.ROUTES,
            web.get("/websocket", get_ws),
        ]
    )
    app.router.add_route("*", EVERYTHING_ELSE, get_from_packs)  # what nobody above has taken
    app.cleanup_ctx.append(_run_prompts)
    app.on_shutdown.append(_say_goodbye)
    return app


def _guards(settings: EngineSettings) -> list[Middleware]:
    """Return the middlewares that admit or refuse requests, the outermost first."""
    guards = [] if settings.cors_origin is None else [allow_origin(settings.cors_origin)]
    guards.append(refuse_other_pages(PageRules.of(settings)))
    return guards if settings.token_sha256 is None else [*guards, require_token(settings.token_sha256)]


async def get_ws(request: web.Request) -> web.StreamResponse:
    parts = services(request)
    return await serve_client(request, parts.clients, parts.runner.greeting, catalogue.features(parts.settings))


async def get_from_packs(request: web.Request) -> web.StreamResponse:
    """Answer by the web interface's files, else by packs' routes; 405 for a path of ours without such a method."""
    found = await front_end.find_static(request)
    if found is not None:
        return found
    parts = services(request)
    await parts.start.engine()  # their routes are there when the packs are loaded
    try:
        return await parts.packs.answer(request)
    except web.HTTPNotFound:
        allowed = await _methods_of(request)
        if not allowed:
            raise
        raise web.HTTPMethodNotAllowed(request.method, allowed) from None


async def _methods_of(request: web.Request) -> set[str]:
    """Return the methods that the server's own routes have for a path."""
    allowed: set[str] = set()
    for resource in request.app.router.resources():
        if resource.canonical != EVERYTHING:
            allowed |= (await resource.resolve(request))[1]
    return allowed


def _below(prefix: str, routes: Iterable[web.RouteDef]) -> list[web.RouteDef]:
    return [web.route(route.method, prefix + route.path, route.handler, **route.kwargs) for route in routes]


async def _run_prompts(app: web.Application) -> AsyncIterator[None]:
    """Run the queue while the server is up; then stop what runs and close the engine."""
    parts = app[SERVICES]
    parts.start.begin()
    task = asyncio.create_task(parts.runner.run_forever(), name="prompt-runner")
    yield
    await parts.packs.close()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await parts.start.close()


async def _say_goodbye(app: web.Application) -> None:
    """Close WebSockets before the server waits for its connections to end."""
    await app[SERVICES].clients.close()
