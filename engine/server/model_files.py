"""`/experiment/models`, `/internal/folder_paths`: model files with their times and sizes, and where they lie."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from aiohttp import web

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
    raise web.HTTPNotFound(text="")


async def get_folder_paths(request: web.Request) -> web.Response:
    engine = await services(request).start.engine()
    kinds = engine.folders.kinds()
    return web.json_response({kind: [str(path) for path in engine.folders.roots(kind)] for kind in kinds})


ROUTES = (
    web.get("/experiment/models/{folder}", get_model_files),
    web.get("/experiment/models/preview/{folder}/{index}/{file:.*}", get_model_preview),
    web.get("/internal/folder_paths", get_folder_paths),
)
