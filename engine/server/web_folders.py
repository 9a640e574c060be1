"""`/extensions`: the web files of packs of custom nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiohttp import web

from darkroom.engine.server.services import services


async def get_extensions(request: web.Request) -> web.Response:
    """List the scripts of all packs, as paths on this server."""
    folders = await _web_folders(request)
    return web.json_response(await asyncio.to_thread(_scripts, folders))


async def get_extension_file(request: web.Request) -> web.StreamResponse:
    """Send one web file of a pack; 404 for a path outside its folder."""
    folder = (await _web_folders(request)).get(request.match_info["pack"])
    if folder is None:
        raise web.HTTPNotFound(text="")
    path = await asyncio.to_thread((folder / request.match_info["file"]).resolve)
    if not path.is_relative_to(folder) or not await asyncio.to_thread(path.is_file):
        raise web.HTTPNotFound(text="")
    return web.FileResponse(path)


async def _web_folders(request: web.Request) -> dict[str, Path]:
    parts = services(request)
    await parts.start.engine()
    return {report.name: report.web_directory for report in parts.packs.reports if report.web_directory is not None}


def _scripts(folders: dict[str, Path]) -> list[str]:
    return [
        f"/extensions/{name}/{path.relative_to(folder).as_posix()}"
        for name, folder in folders.items()
        for path in sorted(folder.rglob("*.js"))
    ]


ROUTES = (
    web.get("/extensions", get_extensions),
    web.get("/extensions/{pack}/{file:.+}", get_extension_file),
)
