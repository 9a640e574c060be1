"""`/experiment/models`, `/internal/folder_paths`: model files with their times and sizes, and where they lie."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from aiohttp import web

from darkroom.engine.server.folders import is_unsafe_name
from darkroom.engine.server.services import services


async def get_model_files(request: web.Request) -> web.Response:
    """List the files of one kind with their times and sizes; 404 for an unknown kind."""
    engine = await services(request).start.engine()
    kind = request.match_info["folder"]
    if kind not in engine.folders.kinds():
        raise web.HTTPNotFound(text="")
    roots = engine.folders.roots(kind)
    names = await asyncio.to_thread(engine.folders.names, kind)
    return web.json_response(await asyncio.to_thread(_described, roots, names))


def _described(roots: list[Path], names: list[str]) -> list[dict[str, object]]:
    files = []
    for index, root in enumerate(roots):
        for name in names:
            try:
                found = os.stat(root / name)
            except OSError:
                continue  # it is in another of the folders
            about = {"modified": found.st_mtime, "created": found.st_ctime, "size": found.st_size}
            files.append({"name": name, "pathIndex": index, **about})
    return files


async def get_model_preview(request: web.Request) -> web.Response:
    """Send the preview image of a model file as WebP; 404 without one.

    `longer_side` makes it smaller. 400 or 403 for names that climb out of the folder.
    """
    engine = await services(request).start.engine()
    kind, name = request.match_info["folder"], request.match_info["file"]
    if kind not in engine.folders.kinds():
        raise web.HTTPNotFound(text="")
    side = request.query.get("longer_side", "")
    if not name or not request.match_info["index"].isdecimal() or (side and not side.isdecimal()):
        raise web.HTTPBadRequest(text="")
    if is_unsafe_name(name):
        raise web.HTTPForbidden(text="")
    longer_side_px = max(1, int(side)) if side else None
    body = await asyncio.to_thread(engine.model_preview, kind, int(request.match_info["index"]), name, longer_side_px)
    if body is None:
        raise web.HTTPNotFound(text="")
    return web.Response(body=body, content_type="image/webp")


async def get_folder_paths(request: web.Request) -> web.Response:
    engine = await services(request).start.engine()
    kinds = engine.folders.kinds()
    return web.json_response({kind: [str(path) for path in engine.folders.roots(kind)] for kind in kinds})


ROUTES = (
    web.get("/experiment/models/{folder}", get_model_files),
    web.get("/experiment/models/preview/{folder}/{index}/{file:.*}", get_model_preview),
    web.get("/internal/folder_paths", get_folder_paths),
)
