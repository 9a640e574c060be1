"""`/api/v1/tuning`: strategies, their measurement on this machine, and outcomes that were measured before."""

from __future__ import annotations

import asyncio

from aiohttp import web

from darkroom.engine.errors import BadModelFile, DeviceLost, OutOfMemory
from darkroom.engine.server.requests import read_object
from darkroom.engine.server.services import services


async def get_tuning(request: web.Request) -> web.Response:
    """Send the strategies, those that may be used, and the outcomes in use."""
    engine = await services(request).start.engine()
    return web.json_response(engine.tuner.report())


async def post_tuning(request: web.Request) -> web.Response:
    """Measure the strategies, after the prompts that wait, and use the choice. Takes seconds to minutes.

    400 with `error` for a wrong field; 500 with `error` and `code` when the device or the model fails.
    """
    body = await read_object(request)
    engine = await services(request).start.engine()
    try:
        outcome = await asyncio.wrap_future(engine.tuning.measure(body))
    except ValueError as error:
        return web.json_response({"error": str(error)}, status=400)
    except (BadModelFile, OutOfMemory, DeviceLost) as error:
        return web.json_response({"error": str(error), "code": error.code}, status=500)
    services(request).queue.allow(engine.tuning.runs_at_once)
    return web.json_response(outcome)


async def put_tuning(request: web.Request) -> web.Response:
    """Use an outcome that was measured before; 400 with `error` for what is none."""
    body = await read_object(request)
    engine = await services(request).start.engine()
    try:
        engine.tuning.adopt(body)
    except ValueError as error:
        return web.json_response({"error": str(error)}, status=400)
    services(request).queue.allow(engine.tuning.runs_at_once)
    return web.json_response({})


ROUTES = (
    web.get("/api/v1/tuning", get_tuning),
    web.post("/api/v1/tuning", post_tuning),
    web.put("/api/v1/tuning", put_tuning),
)
