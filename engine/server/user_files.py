"""`/settings`, `/users` and `/userdata`: what ComfyUI's web interface keeps, in files of the user's folder.

There is one user. Workflows are `workflows/NAME.json` of its folder, settings `comfy.settings.json`, as in ComfyUI, so
that a folder of either is one of the other.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from darkroom.engine.server.folders import inside
from darkroom.engine.server.requests import read_object
from darkroom.engine.server.services import services

SETTINGS: Final = "comfy.settings.json"
UNSTORED: Final = {"user.css": ("text/css", ""), "comfy.templates.json": ("application/json", "[]")}
"""Files that the interface asks for at every start, as long as they are not there."""
SETTINGS_LOCK: Final = web.AppKey("settings_lock", asyncio.Lock)


async def get_settings(request: web.Request) -> web.Response:
    return web.json_response(await asyncio.to_thread(_read_settings, _folder(request)))


async def get_setting(request: web.Request) -> web.Response:
    settings = await asyncio.to_thread(_read_settings, _folder(request))
    return web.json_response(settings.get(request.match_info["id"]))


async def post_settings(request: web.Request) -> web.Response:
    """Add the settings of the body to those stored."""
    await _change_settings(request, await read_object(request))
    return web.Response()


async def post_setting(request: web.Request) -> web.Response:
    try:
        value = await request.json()
    except ValueError:
        raise web.HTTPBadRequest(text="the value is not JSON") from None
    await _change_settings(request, {request.match_info["id"]: value})
    return web.Response()


async def get_users(request: web.Request) -> web.Response:
    return web.json_response({"storage": "server", "migrated": True})


async def post_users(request: web.Request) -> web.Response:
    raise web.HTTPForbidden(text="there is one user")


async def get_userdata(request: web.Request) -> web.Response:
    """List the files of `dir`: names, or with `full_info` objects, or with `split` lists of a name's parts.

    A folder that is not there is empty: the interface asks for its own before it has stored anything.
    """
    name = request.query.get("dir", "")
    if not name:
        raise web.HTTPBadRequest(text="Directory not provided")
    folder = inside(_folder(request), name)
    if folder is None:
        raise web.HTTPForbidden(text="Invalid directory")
    is_deep = _is_set(request, "recurse")
    found = await asyncio.to_thread(lambda: list(_files(folder, is_deep)))
    if _is_set(request, "full_info"):
        return web.json_response([await asyncio.to_thread(_described, path, folder) for path in found])
    names = [path.relative_to(folder).as_posix() for path in found]
    return web.json_response([[name, *name.split("/")] for name in names] if _is_set(request, "split") else names)


async def get_userdata_listing(request: web.Request) -> web.Response:
    """List what `path` holds, folders among it."""
    root = _folder(request)
    folder = inside(root, request.query.get("path", ""))
    if folder is None:
        raise web.HTTPBadRequest(text="Invalid path requested")
    if not await asyncio.to_thread(folder.is_dir):
        if folder == root:
            return web.json_response([])
        raise web.HTTPNotFound(text="Requested path not found")
    return web.json_response(await asyncio.to_thread(_entries, folder, root))


async def get_userdata_file(request: web.Request) -> web.StreamResponse:
    path = _path(request, "file")
    if not await asyncio.to_thread(path.is_file):
        if request.match_info["file"] not in UNSTORED:
            raise web.HTTPNotFound
        media_type, text = UNSTORED[request.match_info["file"]]
        return web.Response(text=text, content_type=media_type)
    return web.FileResponse(path, headers={"Cache-Control": "no-cache"})


async def post_userdata_file(request: web.Request) -> web.Response:
    """Store the body; 409 with `overwrite=false` where the file is there. Sends its name, or all with `full_info`."""
    path, content = _path(request, "file"), await request.read()
    if request.query.get("overwrite") == "false" and await asyncio.to_thread(path.exists):
        raise web.HTTPConflict(text="File already exists")
    await asyncio.to_thread(_write, path, content)
    return await _stored(request, path)


async def delete_userdata_file(request: web.Request) -> web.Response:
    path = _path(request, "file")
    if not await asyncio.to_thread(path.is_file):
        raise web.HTTPNotFound
    await asyncio.to_thread(path.unlink)
    return web.Response(status=204)


async def move_userdata_file(request: web.Request) -> web.Response:
    source, target = _path(request, "file"), _path(request, "dest")
    if not await asyncio.to_thread(source.is_file):
        raise web.HTTPNotFound
    if request.query.get("overwrite") == "false" and await asyncio.to_thread(target.exists):
        raise web.HTTPConflict(text="File already exists")
    await asyncio.to_thread(_move, source, target)
    return await _stored(request, target)


async def _stored(request: web.Request, path: Path) -> web.Response:
    root = _folder(request)
    if _is_set(request, "full_info"):
        return web.json_response(await asyncio.to_thread(_described, path, root))
    return web.json_response(path.relative_to(root).as_posix())


async def _change_settings(request: web.Request, changes: dict[str, Any]) -> None:
    folder = _folder(request)

    def change() -> None:
        _write(folder / SETTINGS, json.dumps(_read_settings(folder) | changes, indent=4).encode())

    async with request.app[SETTINGS_LOCK]:  # each reads what the last one wrote
        await asyncio.to_thread(change)


def _folder(request: web.Request) -> Path:
    return services(request).settings.user_path / "default"


def _path(request: web.Request, part: str) -> Path:
    """Return the path of a name in the URL. Raises HTTPForbidden for one outside of the user's folder."""
    root = _folder(request)
    path = inside(root, request.match_info[part])
    if path is None or path == root:
        raise web.HTTPForbidden
    return path


def _read_settings(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / SETTINGS).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _files(folder: Path, is_deep: bool) -> Iterator[Path]:
    found = folder.rglob("*") if is_deep else folder.glob("*")
    return (path for path in sorted(found) if path.is_file())


def _described(path: Path, root: Path) -> dict[str, object]:
    """Return the entry of a file for the interface, times in milliseconds."""
    about = path.stat()
    times = {"modified": int(about.st_mtime * 1000), "created": int(about.st_ctime * 1000)}
    return {"path": path.relative_to(root).as_posix(), "size": about.st_size, **times}


def _entries(folder: Path, root: Path) -> list[dict[str, object]]:
    entries: list[dict[str, object]] = []
    for path in sorted(folder.iterdir()):
        place = {"name": path.name, "path": path.relative_to(root).as_posix()}
        if path.is_dir():
            entries.append({**place, "type": "directory"})
        else:
            entries.append({**_described(path, root), **place, "type": "file"})
    return entries


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(source, target)


def _is_set(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() == "true"


ROUTES = (
    web.get("/settings", get_settings),
    web.get("/settings/{id}", get_setting),
    web.post("/settings", post_settings),
    web.post("/settings/{id}", post_setting),
    web.get("/users", get_users),
    web.post("/users", post_users),
    web.get("/userdata", get_userdata),
    web.get("/v2/userdata", get_userdata_listing),
    web.get("/userdata/{file}", get_userdata_file),
    web.post("/userdata/{file}", post_userdata_file),
    web.delete("/userdata/{file}", delete_userdata_file),
    web.post("/userdata/{file}/move/{dest}", move_userdata_file),
)
