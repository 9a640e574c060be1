"""Vast's own routes: `/session/create|get|health|end` and `/pyworker/update`, with Vast's texts and statuses.

`session_end_app` is `/session/end` alone, for the listener without TLS. The request that a session's creator asked to
have posted at its end goes to this application, in the creator's name, and only to the routes that create jobs.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Mapping
from typing import Any, Final

import httpx
import structlog
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from darkroom.worker.api.body_sizes import takes_jobs, takes_little
from darkroom.worker.api.busy import busy
from darkroom.worker.api.callers import sender_of
from darkroom.worker.api.internal_requests import acting_as
from darkroom.worker.api.packed_bodies import PackedBodies
from darkroom.worker.api.results import check_caller, refuse, services_of
from darkroom.worker.api.services import Services
from darkroom.worker.autoscaler.envelope import EnvelopeRejected
from darkroom.worker.errors import RequestRejected, RequestTooLarge, TooManySessions, WorkerError, http_status
from darkroom.worker.guard.bodies import Sender
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.integrations.vast.autoscaler import Attachments, VastAutoscaler
from darkroom.worker.integrations.vast.envelope import EnvelopeOpener, caller_of
from darkroom.worker.integrations.vast.listener import PlainListener
from darkroom.worker.integrations.vast.sessions import Session
from darkroom.worker.json.values import JsonObject
from darkroom.worker.settings.platforms import VastConfig

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
ON_CLOSE_ROUTES: Final = ("/generate", "/generate/sync", "/generate/stream")

router = APIRouter(include_in_schema=False)
end_router = APIRouter(include_in_schema=False)

log = structlog.get_logger("vast")


class _Answer(Exception):
    """Reply in place of the one that a route would return."""

    def __init__(self, status: int, message: str) -> None:
        self.reply = JSONResponse({"error": message}, status_code=status)


class VastRoutes:
    """The routes of a worker under Vast, over its autoscaler and its envelopes."""

    def __init__(self, vast: VastAutoscaler, envelopes: EnvelopeOpener, config: VastConfig) -> None:
        self.vast = vast
        self.envelopes = envelopes
        self.config = config

    def attach(self, app: FastAPI, services: Services) -> None:
        """Add the routes, and give the application to the autoscaler."""
        app.router.routes.extend([*router.routes, *end_router.routes])
        app.state.vast = self
        config = self.config
        listener = PlainListener(
            session_end_app(services, self),
            config.host,
            config.worker_http_port,
            services.observation.connections,
            busy,
        )

        async def post_to_self(route: str, body: JsonObject, maker: Identity) -> None:
            if route not in ON_CLOSE_ROUTES:
                log.warning("session route refused", route=route[:200])
                return
            transport = httpx.ASGITransport(app=acting_as(app, maker), raise_app_exceptions=False)
            try:
                async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=None) as client:
                    reply = await client.post(route, json=dict(body))
                log.info("session close request sent", route=route[:200], status=reply.status_code)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                log.warning("session close request failed", route=route[:200], reason=cause_of(error))

        self.vast.attach(Attachments(post_to_self, listener))


def session_end_app(services: Services, routes: VastRoutes) -> FastAPI:
    app = FastAPI(openapi_url=None)
    app.state.services = services
    app.state.vast = routes
    app.add_middleware(PackedBodies)
    app.include_router(end_router)
    return app


@router.post("/session/create")
@takes_jobs
async def create(request: Request) -> Response:
    services, vast = services_of(request), _vast_of(request)
    caller = None
    try:
        body = await _read(request, sender_of(request))
        maker = check_caller(request, has_vast_envelope="auth_data" in body)
        caller = caller_of({"auth_data": body.get("auth_data")})
        envelope = _routes_of(request).envelopes.open(body)
        services.jobs.gate.check()
        session = vast.create_session(envelope, maker)
    except _Answer as answer:
        return answer.reply
    except WorkerError as error:
        if not isinstance(error, TooManySessions):  # the autoscaler refused it, and has counted it
            services.platform.autoscaler.request_refused(0.0, caller, error)
        return refuse(error, is_vast=True)
    expiration = vast.sessions.expiration_of(session)
    return JSONResponse({"session_id": session.id, "expiration": expiration}, status_code=201)


@router.post("/session/get")
@takes_jobs
async def get(request: Request) -> Response:
    try:
        session = _known(request, await _read_of_session(request))
    except _Answer as answer:
        return answer.reply
    return JSONResponse(
        {
            "session_id": session.id,
            "auth_data": dict(session.auth_data),
            "lifetime": session.lifetime_seconds,
            "expiration": _vast_of(request).sessions.expiration_of(session),
            "created_at": session.created_at,
            "on_close_route": session.on_close_route,
            "on_close_payload": session.on_close_payload,
        }
    )


@router.post("/session/health")
@takes_jobs
async def health(request: Request) -> Response:
    try:
        body = await _read_of_session(request)
        if body.get("session_id") and _vast_of(request).sessions.find(body["session_id"]) is None:
            return JSONResponse({"ok": False})
        _known(request, body)
    except _Answer as answer:
        return answer.reply
    return JSONResponse({"ok": True})


@end_router.post("/session/end")
@takes_jobs
async def end(request: Request) -> Response:
    try:
        body = await _read_of_session(request)
        session = _known(request, body, unknown=f"session with id {body.get('session_id')} not found")
    except _Answer as answer:
        return answer.reply
    # a client that disconnects must not interrupt the closing of the session
    if not await asyncio.shield(asyncio.ensure_future(_vast_of(request).close_session(session))):
        return JSONResponse({"error": "session already closed"}, status_code=410)
    return JSONResponse({"ended": True, "removed_session": session.id})


@router.post("/pyworker/update")
@takes_little
async def update(request: Request) -> Response:
    """Write the marker file that makes the image's start script fetch new code."""
    config = _routes_of(request).config
    token = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
    known = config.master_token.get_secret_value().encode()
    if not known or not hmac.compare_digest(token, known):
        return JSONResponse({"error": "unauthorized"}, status_code=401)
    try:
        await asyncio.to_thread(config.update_file.touch)
    except OSError as error:
        return JSONResponse({"error": f"failed to write file: {error.strerror}"}, status_code=500)
    return JSONResponse({"ok": True})


def _known(request: Request, body: Mapping[str, object], unknown: str = "session does not exist") -> Session:
    """Return the session that a body names and proves to be the creator's. Raises _Answer."""
    if not body.get("session_id"):
        raise _Answer(422, "missing session_id")
    session = _vast_of(request).sessions.find(body["session_id"])
    if session is None:
        raise _Answer(400, unknown)
    if not hmac.compare_digest(_canonical(body.get("session_auth")), _canonical(session.auth_data)):
        raise _Answer(401, "session_auth is not valid")
    return session


async def _read(request: Request, sender: Sender) -> dict[str, Any]:
    """Return the JSON object of a body. Raises _Answer, Unauthorized, MemoryLow."""
    bodies = services_of(request).requests.bodies
    try:
        with bodies.memory.lease(sender) as lease:
            return await bodies.parse(await bodies.read(request, lease, MAX_BODY_BYTES))
    except RequestTooLarge as error:
        raise _Answer(413, error.message) from None
    except EnvelopeRejected:
        raise
    except RequestRejected as error:
        is_bounded = error.problems[0].type is not None
        raise _Answer(422, error.message if is_bounded else "invalid JSON") from None


async def _read_of_session(request: Request) -> dict[str, Any]:
    """Return the body of a request about a session; its proof is within the body. Raises _Answer."""
    try:
        return await _read(request, Sender(is_known=False))
    except WorkerError as error:
        raise _Answer(http_status(type(error)), error.message) from None


def _canonical(value: object) -> bytes:
    return json.dumps(dict(value) if isinstance(value, Mapping) else value, sort_keys=True).encode()


def _routes_of(request: Request) -> VastRoutes:
    routes: VastRoutes = request.app.state.vast
    return routes


def _vast_of(request: Request) -> VastAutoscaler:
    return _routes_of(request).vast
