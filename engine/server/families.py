"""`/api/v1/families`: the families of models the engine knows, with defaults for a picture of each."""

from __future__ import annotations

from aiohttp import web

from engine.server.services import services


async def get_families(request: web.Request) -> web.Response:
    """Answer `[{"name", "label", "default", "nodes"}]`, the default family first."""
    engine = await services(request).start.engine()
    return web.json_response(engine.families())


ROUTES = (web.get("/api/v1/families", get_families),)
