"""`/api/v1/families` and `/api/v1/checkpoints`: the families of models, and those of the files that are here."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

from aiohttp import web

from darkroom.engine.server.services import services


async def get_families(request: web.Request) -> web.Response:
    """Answer `[{"name", "label", "default", "variants", "nodes", "scales"}]`, the default family first."""
    engine = await services(request).start.engine()
    return web.json_response(engine.file_families.families())


async def get_checkpoints(request: web.Request) -> web.Response:
    """Answer `{"checkpoints": [{"name", "size_bytes", "family", "variant", "scale", "num_weights", "has_text"}]}`.

    `kind` is `checkpoints` (the default) or `diffusion_models`; each `name` limits the answer to that file. Only
    headers of files are read, once for each state of a file. 400 for another kind.
    """
    engine = await services(request).start.engine()
    kind = request.query.get("kind", "checkpoints")
    names = request.query.getall("name", None)
    try:
        found = await asyncio.to_thread(engine.file_families.describe, kind, names)
    except KeyError:
        allowed = ", ".join(engine.file_families.kinds)
        return web.json_response({"error": f"kind: no such kind of file; got {kind!r}, expected {allowed}"}, status=400)
    return web.json_response({"checkpoints": [asdict(item) for item in found]})


ROUTES = (web.get("/api/v1/families", get_families), web.get("/api/v1/checkpoints", get_checkpoints))
